"""Files become columns, each read by what its cells are, and what cannot be read is named."""

import csv
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from scipy import sparse

from bdtppl import (
    ExactTreeClassifier,
    GreedyModalTreeClassifier,
    GreedyModalTreeRegressor,
    compare,
)
from bdtppl.anomalies import PermutedColumns
from bdtppl.models.constraints import Constraints
from bdtppl.models.data.schema import Column, Schema, TableWarning
from bdtppl.models.data.tables import are_dates
from bdtppl.table_files import read_table, write_table


@pytest.fixture
def write(tmp_path):
    def write(text, name="table.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table.csv", "size,hue\n1.5,red\n,blue\n-2e3,NA\n"),
        ("table.csv", "size;hue\n1.5;red\n;blue\n-2e3;n/a\n"),
        ("table.txt", "size\thue\r\n1.5\tred\r\nnan\tblue\r\n-2e3\t\r\n"),
        ("table.TSV", " size\thue \n\n1.5\tred\nNaN\t blue\n-2e3\t\n"),
        ("table.csv", '\ufeff"size","hue"\n"1.5","red"\n"","blue"\n"-2e3",""'),
    ],
)
def test_dialects_read_alike(write, name, text):
    features = read_table(write(text, name)).features(["size", "hue"])
    np.testing.assert_array_equal(features["size"], [1.5, np.nan, -2000])
    assert features["size"].dtype == np.float64
    assert features["hue"].tolist() == ["red", "blue", None]


@pytest.fixture(params=["pyarrow", "polars"])
def _parquet(request, monkeypatch):
    """Only one of the packages that read and write Parquet is there."""
    monkeypatch.setattr("bdtppl.table_files.find_spec", lambda name: name == request.param or None)


@pytest.mark.usefixtures("_parquet")
def test_parquet_comes_back(tmp_path):
    columns = {"size": [0.1, 2.0], "hue": ["1", "blue"]}
    write_table(tmp_path / "t.parquet", columns)
    features = read_table(tmp_path / "t.parquet").features(columns)
    assert {name: values.tolist() for name, values in features.items()} == columns


@pytest.mark.usefixtures("_parquet")
def test_parquet_reads_like_text(tmp_path):
    path = tmp_path / "table.parquet"
    frame = {"size": [0.1, None, 3.0], "hue": ["red", None, "blue"], "on": [True, False, True]}
    polars.DataFrame(frame).write_parquet(path)
    table = read_table(path)
    features = table.features(table.columns)
    np.testing.assert_array_equal(features["size"], [0.1, np.nan, 3.0])
    assert features["hue"].tolist() == ["red", None, "blue"]
    assert features["on"].tolist() == ["True", "False", "True"]
    assert table.place(1) == "row 1"


@pytest.mark.usefixtures("_parquet")
@pytest.mark.parametrize("name", [None, "row"])
def test_the_index_of_a_pandas_frame_is_no_column(tmp_path, name):
    index = pd.Index([1, 3, 4], name=name)
    pd.DataFrame({"size": [0.1, 2.0, 3.0]}, index).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.columns == ["size"]
    (note,) = table.doubts(["size"])
    assert f"Column {name or '__index_level_0__'!r}" in note
    assert "is the index of a pandas frame and was left out; reset_index()" in note
    with pytest.raises(ValueError, match=r"is the index of a pandas frame .* reset_index"):
        table.require(name or "__index_level_0__")


@pytest.mark.usefixtures("_parquet")
def test_only_nulls_of_parquet_are_missing(tmp_path):
    words = ["NA", "?", "null", "nan", "", " x", "<NA>", None]
    size = [0.5, float("nan"), None, 1.0, 2.0, 3.0, 4.0, 5.0]
    polars.DataFrame({"word": words, "size": size}).write_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    features = table.features(table.columns)
    assert features["word"].tolist() == words
    assert Schema.read(features)[0].columns[0].levels == tuple(sorted(words[:-1]))
    np.testing.assert_array_equal(np.isnan(features["size"]), [False, True, True, *[False] * 5])
    with pytest.raises(ValueError, match="Column 'word', row 0: 'NA' is not a number"):
        table.numbers("word")


@pytest.mark.usefixtures("_parquet")
def test_lists_and_durations_in_parquet_are_no_categories(tmp_path):
    spans = [timedelta(1), timedelta(hours=5), None]
    frame = {"tags": [["a"], ["b", "c"], None], "span": spans, "size": [1.0, 2.0, 3.0]}
    polars.DataFrame(frame).write_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.columns == ["span", "size"]
    assert "'tags' of" in next(table.doubts(()))
    with pytest.raises(ValueError, match="Column 'span' contains dates"):
        table.features(["span"])


def test_many_texts_of_digits_in_parquet_are_refused_by_name(tmp_path):
    sites = [f"{place:03}" for place in range(150)]
    write_table(tmp_path / "t.parquet", {"site": sites})
    with pytest.raises(ValueError, match="Column 'site' has 150 distinct values"):
        read_table(tmp_path / "t.parquet").features(["site"])


def test_rows_are_placed_by_the_line_that_they_start_on(write):
    table = read_table(write('a,b\n\n1,"two\nlines"\n2,x\n'))
    assert [table.place(row) for row in range(2)] == ["line 3", "line 5"]


def test_columns_without_a_name_are_left_out(write):
    table = read_table(write(",a,b,\n0,1,2,\n1,3,4,\n"))
    assert table.columns == ["a", "b"]
    assert list(table.doubts(table.columns)) == [
        f"Column {place} of {table.path} has no name and was left out." for place in (1, 4)
    ]


def test_what_a_column_was_at_fit_decides_at_predict(write):
    table = read_table(write("grade,size,other\n1,2,x\n2,,y\n"))
    columns = [Column("size"), Column("grade", ("1", "2", "K"), ("1", "2", "K"))]
    features = table.features_like(columns)
    assert list(features) == ["size", "grade"]
    assert features["grade"].tolist() == ["1", "2"]
    matrix = Schema(tuple(columns)).transform(features)
    np.testing.assert_array_equal(matrix, [[2, 1, 0, 0], [np.nan, 0, 1, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n1,2,3\n", "line 3: there are 3 cells, but the header has 2 columns"),
        ("a,b,a\n1,2,3\n", "two columns named 'a'"),
        ('a,b\n1,"2\n3,4\n', "line 3: unexpected end of data"),
    ],
)
def test_what_is_no_table_is_refused(write, text, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(text))


def test_files_that_are_not_text_are_refused(write, tmp_path):
    with pytest.raises(ValueError, match="not text in UTF-8"):
        read_table(write("a,b\nß,1\n", encoding="latin-1"))
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_table(write("a,b\n1,2\n", "table.parquet"))
    polars.DataFrame().write_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match="has no columns"):
        read_table(tmp_path / "empty.parquet")
    with pytest.raises(FileNotFoundError, match=r"missing\.csv does not exist"):
        read_table(tmp_path / "missing.csv")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_table(tmp_path)


@pytest.mark.parametrize("text", ["a,{}\n1,2\n", "a,b\n1,{}\n"])
def test_a_field_that_is_too_large_is_placed(write, text):
    line = 1 if text.startswith("a,{}") else 2
    path = write(text.format("x" * (csv.field_size_limit() + 1)))
    with pytest.raises(ValueError, match=f"line {line}: field larger than field limit"):
        read_table(path)


def test_cells_that_are_no_finite_numbers_are_placed(write):
    table = read_table(write("a,b\n1,inf\nx,2\n"))
    with pytest.raises(ValueError, match="Column 'b', line 2: 'inf' is infinite"):
        table.features(["b"])
    with pytest.raises(ValueError, match="Column 'a', line 3: 'x' is not a number"):
        table.features_like([Column("a")])


def test_a_slip_in_a_column_of_numbers_is_no_category(write):
    cells = [str(value) for value in range(150)]
    cells[40] = "40x"
    table = read_table(write("\n".join(["a", *cells])))
    with pytest.raises(ValueError, match=r"150 distinct values .* \(line 42 has '40x'\)"):
        table.features(["a"])


# ------------------------------------------------------------ notations of numbers, headers


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1,5", "-0,25", "12", "NA"], [1.5, -0.25, 12, np.nan]),
        (["1.234,5", "2.000", ",5"], [1234.5, 2000, 0.5]),
        (["1,234,567", "1,234", "12.5"], [1234567, 1234, 12.5]),
        (["1 234", "1\u00a0234\u00a0567", "12"], [1234, 1234567, 12]),
        (["1'234.5", "2'000"], [1234.5, 2000]),
        (["0,250", "1,125"], [0.25, 1.125]),
        (["1,5e3", "2"], [1500, 2]),
        (["-nan", "+NaN", "2"], [np.nan, np.nan, 2]),
    ],
)
def test_numbers_are_read_in_the_notation_of_their_column(write, cells, values):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    np.testing.assert_array_equal(table.features(["a"])["a"], values)
    np.testing.assert_array_equal(table.features_like([Column("a")])["a"], values)
    assert table.features_like([Column("a", ("u", "v"))])["a"][0] in (cells[0], None)
    notes = list(table.doubts(["a"]))
    assert len(notes) == ("-nan" not in cells)
    assert all("Column 'a' is read as numbers with " in note for note in notes)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["1", "1,234", "12,500"], "line 3: the number '1,234' is one .* commas .* and another"),
        (
            ["1,5", "3", "2.5"],
            "line 4: the number '2.5' is in no notation shared by all cells above",
        ),
        (["1,234", "1,5", "1.5"], "line 4: the number '1.5' is in no notation shared by all cells"),
    ],
)
def test_numbers_whose_notation_is_open_are_refused(write, cells, said):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    for read in (table.features, table.is_numeric, table.numbers):
        with pytest.raises(ValueError, match=f"Column 'a', {said}"):
            read("a")


def test_a_slip_among_decimal_commas_is_noted(write):
    table = read_table(write("a;b\n1,5;x\n2,5;x\nfour;x\n"))
    (note,) = table.doubts(["a"])
    assert "a category of 3 levels, though most cells are numbers: line 4 has 'four'" in note


@pytest.mark.parametrize("text", ["5.1,3.5,red\n4.9,3.0,red\n", "2,1\n2,0\n", "a,b\na,c\nd,b\n"])
def test_a_table_without_a_header_is_refused(write, text):
    with pytest.raises(
        ValueError, match=r"has no header: its first line .* Insert a line of names"
    ):
        read_table(write(text))


def test_a_header_that_looks_like_a_row_is_noted(write):
    (note,) = read_table(write("1,Ann,f,7.25\n2,Eve,f,8.5\n")).doubts(())
    assert "Most names of columns" in note
    for text in ("2019,2020,2021,site\n1,2,3,x\n", "0,1,2\n0.1,0.2,1\n", "a,b\n1,a\n"):
        assert not list(read_table(write(text)).doubts(()))


def test_an_unknown_column_is_named_with_a_near_one(write):
    table = read_table(write("width,length\n1,2\n"))
    with pytest.raises(ValueError, match=r"'lenght' is not in .*did you mean 'length'"):
        table.require("lenght")
    with pytest.raises(ValueError, match="its columns are width, length"):
        table.require("colour")


def test_estimators_fit_mappings_and_find_their_columns_by_name():
    X = {"size": [1.0, 2.0, 3.0, 4.0, np.nan], "hue": ["u", "v", None, "v", "u"]}
    model = ExactTreeClassifier().fit(X, [0, 0, 1, 1, 1])
    assert model.feature_names_in_.tolist() == ["size", "hue"]
    turned = {"hue": X["hue"], "extra": [0] * 5, "size": X["size"]}
    np.testing.assert_array_equal(model.predict_proba(turned), model.predict_proba(X))
    with pytest.raises(ValueError, match="Column 'hue' is missing"):
        model.predict({"size": [1.0]})
    with pytest.raises(ValueError, match="'size' has 2 rows and 'hue' has 1"):
        model.predict({"size": [1.0, 2.0], "hue": ["u"]})
    with pytest.raises(ValueError, match="Column 'size' must have one axis; it has 2"):
        model.predict({"size": [[1.0]], "hue": ["u"]})


def test_numbers_as_text_are_warned_of_where_no_category_is_declared():
    text = ["1", "2.5", "1"]
    for table in (np.array([text]).T, {"x0": np.array(text)}, pd.DataFrame({"x0": text})):
        with pytest.warns(UserWarning, match="read as categories, here those of 'x0': convert"):
            Schema.read(table)
    for category in (pd.Categorical(text), polars.Series(text, dtype=polars.Categorical)):
        frame = pd.DataFrame if isinstance(category, pd.Categorical) else polars.DataFrame
        assert Schema.read(frame({"x0": category}))[0].features == ("x0=2.5",)


def test_a_level_for_every_second_row_is_warned_of():
    names = [f"Ann {place}" for place in range(29)]
    for table in (np.array([names]).T, {"x0": np.array([*names, "Ann 0"])}):
        with pytest.warns(TableWarning, match=r"Column 'x0' has 29 levels in (29|30) rows"):
            Schema.read(table)
    Schema.read({"x0": np.array([*names, *names, "Ann 0"])})
    Schema.read(pd.DataFrame({"x0": pd.Categorical(names)}))


def test_columns_that_number_the_rows_are_warned_of():
    size = np.linspace(0.0, 1.0, 30)
    counted, mixed = np.arange(1, 31), np.random.default_rng(0).permutation(30) * 7
    for name, values in (("day", counted), ("ID", mixed), ("site.id", mixed), ("rownames", mixed)):
        with pytest.warns(TableWarning, match=f"Column '{name}' numbers the rows"):
            Schema.read({"size": size, name: values})
    for name, values in (("day", mixed), ("id", mixed // 14), ("id", size), ("valid", mixed)):
        Schema.read({"size": 2 * size, name: values})
    Schema.read({"day": counted})  # there is nothing else to go by
    Schema.read(np.array([counted, size]).T)


def test_an_index_that_pandas_has_written_is_left_out(write):
    table = read_table(write("Unnamed: 0,a\n0,5\n1,6\n"))
    assert table.columns == ["a"]
    assert "Column 1 of" in next(iter(table.doubts(())))
    assert read_table(write("Unnamed: 0,a\n0,5\n2,6\n")).columns == ["Unnamed: 0", "a"]


DECORATED = [
    (["12.5%", "7%", "NA"], [12.5, 7, np.nan]),
    (["$1,234", "$12"], [1234, 12]),
    (["$1,234.50", "-$12", "$-3", "($4.5)"], [1234.5, -12, -3, -4.5]),
    (["12 cm", "7.5 cm"], [12, 7.5]),
    (["12cm", "7 cm"], [12, 7]),
    (["(1,234)", "1,234.5"], [-1234, 1234.5]),
    (["1.234,56 EUR", "12,5 EUR"], [1234.56, 12.5]),
    (["USD 5", "USD 1e3"], [5, 1000]),
    (["5 kg/m2", "6 kg/m2"], [5, 6]),
    (["12 May", "13 May"], [12, 13]),
    (["5E3 km", "2e3 km"], [5000, 2000]),
    (["\u20ac1.234,50", "\u20ac12,00"], [1234.5, 12]),
    (["1 234,50 \u20ac", "12,00 \u20ac"], [1234.5, 12]),
    (["12 %", "7,5 %"], [12, 7.5]),
    (["CHF 1'234.50", "CHF 12.00"], [1234.5, 12]),
    (["R$ 5,50", "R$ 1.200,00"], [5.5, 1200]),
    (["($1,234)", "$5"], [-1234, 5]),
    (["\u22125.5%", "3%"], [-5.5, 3]),
    (["\u2212$5", "$3"], [-5, 3]),
    (["5 \u00b0C", "\u22123 \u00b0C"], [5, -3]),
    (["5 m\u00b2", "6 m\u00b2"], [5, 6]),
    (["1\u202f000 km", "20 km"], [1000, 20]),
    (["1\u00a0234,5 kg", "2,5 kg"], [1234.5, 2.5]),
    (["10 km/h", "12 km/h"], [10, 12]),
]
NOT_DECORATED = [
    ["$5", "7"],
    ["$5", "\u20ac7"],
    ["5 cm", "6 mm"],
    ["(5)", "(6)"],  # which may be standard errors
    ["A12", "A13"],
    ["<5", "<7"],
    ["1st", "2nd"],
    ["12-14 h", "15-17 h"],
    ["10 x 20", "12 x 20"],
    ["(5", "6)"],
    ["-(-5)", "6"],
    ["$", "5"],
    ["1.2.3", "1.2.4"],
    ["v1.2", "v1.3"],
    ["192.168.0.1", "10.0.0.1"],
    ["12h30", "13h45"],
    ["+49 30 123456", "+49 40 654321"],
    ["555-1234", "555-9876"],
    ["(030) 1234", "(040) 1234"],
    ["90210-1234", "10001-0001"],
    ["5'6\"", "5'7\""],
    ["0x1F", "0x2A"],
    ["1/2", "3/4"],
    ["5M", "7k"],
    ["5*", "6*"],
    ["50 %", "0.5"],
    ["5-", "3"],
    ["\u2212\u22125", "3"],
]


@pytest.mark.parametrize(("cells", "values"), DECORATED)
def test_numbers_are_read_without_what_decorates_all_of_them(write, cells, values):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    np.testing.assert_array_equal(table.features(["a"])["a"], values)
    (note,) = table.doubts(["a"])
    assert "Column 'a' is read as numbers " in note
    frame = {"a": np.array([None if cell == "NA" else cell for cell in cells], object)}
    with pytest.warns(TableWarning, match="Columns of text are read as numbers: 'a' "):
        schema, matrix = Schema.read(frame)
    np.testing.assert_array_equal(matrix[:, 0], values)
    np.testing.assert_array_equal(schema.transform(frame)[:, 0], values)
    with pytest.raises(ValueError, match=r"row 1: 'wide' is not a number"):
        schema.transform({"a": [cells[0], "wide"]})


@pytest.mark.parametrize("cells", NOT_DECORATED)
def test_numbers_that_are_decorated_differently_are_a_category(write, cells):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    assert not table.is_numeric("a")
    schema, _ = Schema.read({"a": np.array(cells)})
    assert schema.columns[0].levels == tuple(sorted(cells))


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        (["2024-01-31", "2024-02-01"], "contains dates"),
        (["31.01.2024", "01.02.2024"], "contains dates"),
        (["01/02/2024", "03/04/2024"], "contains dates"),
        (["12:30", "13:45"], "contains dates"),
        (["R$ 1,500", "R$ 2,750"], "'1,500' is one number"),  # where commas are decimal
        (["1,234 cm", "5,678 cm"], "'1,234' is one number"),
        (["1,5", "2.5"], "is in no notation shared by all cells above"),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(write, cells, error):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    with pytest.raises(ValueError, match=error):
        table.features(["a"])


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["\u22125", "3"], [-5, 3]),  # the minus of typesetters
        (["1,5e3", "2,5e-1"], [1500, 0.25]),
        (["1\u00a0234,5", "2,5"], [1234.5, 2.5]),
        (["007", "012"], [7, 12]),
    ],
)
def test_numbers_in_other_notations_are_read(write, cells, values):
    table = read_table(write("\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    np.testing.assert_array_equal(table.features(["a"])["a"], values)


def test_a_slip_among_decorated_numbers_is_noted(write):
    table = read_table(write("a;b\n$5;x\n$7;x\n8;x\n"))
    (note,) = table.doubts(["a"])
    assert "a category of 3 levels, though most cells are numbers: line 4 has '8'" in note


def test_collections_are_no_values():
    cells = np.array([1.0, [1, 2]], object)
    for table in (cells[:, None], {"x0": cells}, pd.DataFrame({"x0": cells})):
        with pytest.raises(TypeError, match=r"Column 'x0', row 1: \[1, 2\] is a list"):
            Schema.read(table)


def test_constraints_list_features():
    with pytest.raises(TypeError, match="features must be a list of names; got the text 'age'"):
        Constraints(features="age")


@pytest.mark.usefixtures("_parquet")
def test_text_in_parquet_is_text(tmp_path):
    sites = ["01", "02", "10", "01"]
    kind = polars.Series(["1", "2", "1", "2"], dtype=polars.Categorical)
    frame = {"site": sites, "kind": kind, "size": [1.0, 2.0, 3.0, 4.0]}
    path = tmp_path / "table.parquet"
    polars.DataFrame(frame).write_parquet(path)
    features = read_table(path).features(frame)
    assert features["site"].tolist() == sites
    assert features["kind"].tolist() == ["1", "2", "1", "2"]
    assert features["size"].dtype == float


# ------------------------------------------------------------------------- containers agree


@pytest.mark.parametrize(
    "table",
    [
        {"ok": np.array([True, False, True])},
        {"ok": np.array([True, False, True], object)},
        pd.DataFrame({"ok": [True, False, True]}),
        pd.DataFrame({"ok": pd.array([True, False, True], dtype="boolean")}),
        pd.DataFrame({"ok": pd.Series([True, False, True], dtype=object)}),
        polars.DataFrame({"ok": [True, False, True]}),
    ],
    ids=["mapping", "objects", "pandas", "nullable", "pandas objects", "polars"],
)
def test_booleans_are_a_category_in_every_container(table):
    schema, matrix = Schema.read(table)
    assert schema.features == ("ok=True",)
    assert matrix[:, 0].tolist() == [1, 0, 1]
    for new in (table, {"ok": ["true", "FALSE", "True"]}, np.array([[1.0], [0.0], [1.0]])):
        assert schema.transform(new)[:, 0].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="level 'maybe' was not seen"):
        schema.transform({"ok": ["maybe"]})


def test_unknown_levels_are_none_of_those_that_are_known():
    schema, _ = Schema.read({"hue": ["red", "green", "blue"], "size": [1.0, 2.0, 3.0]})
    new = {"hue": ["pink", "red", None, "grey", "pink"], "size": [0.0] * 5}
    said = "Column 'hue': level 'pink', 'grey' was not seen .* none of these; its levels are blue, "
    with pytest.warns(TableWarning, match=said) as warned:
        matrix = schema.transform(new, refuse_unknown=False)
    assert len(warned) == 1
    nan = np.nan
    wanted = [[0, 0, 0, 0], [0, 0, 1, 0], [nan, nan, nan, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(matrix, wanted)
    with pytest.raises(ValueError, match="row 0: level 'pink' was not seen"):
        schema.transform(new)


def test_numbers_among_objects_are_numbers():
    cells = [0.5, None, Decimal("1.5"), True]
    for table in (
        {"a": np.array(cells, object)},
        pd.DataFrame({"a": pd.Series(cells, dtype=object)}),
    ):
        schema, matrix = Schema.read(table)
        assert schema.columns == (Column("a", marks_missing=True),)
        np.testing.assert_array_equal(matrix.T, [[0.5, np.nan, 1.5, 1.0], [0, 1, 0, 0]])


def test_whole_numbers_are_levels_however_they_are_stored():
    schema, _ = Schema.read(pd.DataFrame({"a": pd.Categorical([0, 1, 2])}))
    for new in (pd.DataFrame({"a": [1, 2]}), {"a": np.array([1.0, 2.0])}, {"a": ["1", "2"]}):
        assert schema.transform(new).tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match=r"row 0: level '1\.5' was not seen"):
        schema.transform({"a": [1.5]})


def test_declared_levels_outlast_the_rows_that_had_them():
    table = {"hue": np.array(["red", "blue", "rare"]), "size": np.arange(3.0)}
    schema, matrix = Schema.read(table)
    declared = schema.declared(table)
    again, some = Schema.read({name: column[:2] for name, column in declared.items()})
    assert again == schema
    np.testing.assert_array_equal(some, matrix[:2])


def test_a_missing_label_of_any_kind_is_named():
    X = [[1.0], [2.0], [3.0]]
    for missing in (None, np.nan, pd.NA):
        y = pd.Series(["a", "b", missing], dtype="string")
        for labels in (y, y.astype(object)):
            with pytest.raises(ValueError, match="y, row 2: the label is missing"):
                ExactTreeClassifier().fit(X, labels)


# ------------------------------------------------------------------- what NumPy and text would lose


def test_masked_cells_are_missing():
    X = np.ma.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], mask=[[0, 1], [0, 0], [0, 0]])
    words = np.ma.array(["u", "v", "w"], mask=[0, 0, 1])
    expected = [[1, np.nan], [3, 4], [5, 6]]
    for table in (X, X.astype(int), list(X), X.astype(object), {"a": X[:, 0], "b": X[:, 1]}):
        np.testing.assert_array_equal(Schema.read(table)[1][:, :2], expected)
    schema, matrix = Schema.read({"w": words, "b": np.ma.array([True, True, True], mask=[0, 1, 0])})
    assert schema.features == ("w=v", "b=True", "w=missing", "b=missing")
    np.testing.assert_array_equal(matrix, [[0, 1, 0, 0], [1, np.nan, 0, 1], [np.nan, 1, 1, 0]])
    model = GreedyModalTreeRegressor().fit(X, [0, 1, 2])
    assert np.isnan(model.design_.matrix[0, 1])
    np.testing.assert_array_equal(model.predict(X), model.predict(expected))


def test_masked_targets_and_weights_are_refused():
    X, y = np.arange(4.0)[:, None], np.ma.array([0, 0, 1, 1], mask=[0, 0, 0, 1])
    with pytest.raises(ValueError, match="y, row 3: the label is missing"):
        GreedyModalTreeClassifier().fit(X, y)
    with pytest.raises(ValueError, match="y, row 3: the target is missing"):
        GreedyModalTreeRegressor().fit(X, y)
    with pytest.raises(ValueError, match=r"sample_weight, row 3: .* got nan"):
        GreedyModalTreeRegressor().fit(X, y.data, y + 1)
    labels = GreedyModalTreeClassifier().fit(X, np.ma.array(y.data)).classes_
    assert labels.dtype.kind == "i"


def test_what_stands_beside_words_in_a_list_stays_what_it_is():
    rows = [["a", 1.0], [float("nan"), 2.0], ["b", 3.0], [None, 4.0]]
    schema, matrix = Schema.read(rows)
    assert schema.columns == (Column.of("x0", ("a", "b"), marks_missing=True), Column("x1"))
    np.testing.assert_array_equal(matrix[:, 0], [0, np.nan, 1, np.nan])
    assert Schema.read({"c": ["a", np.nan, "b"]})[0].columns[0].levels == ("a", "b")
    model = GreedyModalTreeClassifier().fit(rows, [0, 1, 0, 1])
    assert model.schema_ == schema
    model.predict(rows)


def test_labels_of_two_kinds_are_refused():
    X = np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="y, row 3: the label is missing"):
        GreedyModalTreeClassifier().fit(X, ["a", "b", "a", np.nan])
    for labels in ([1, "1", "a", "a"], np.array(["a", 1, "b", 1], object), [True, "True", "a", 2]):
        with pytest.raises(ValueError, match=r"y holds text and other labels, such as '.*' and "):
            GreedyModalTreeClassifier().fit(X, labels)


@pytest.mark.parametrize(
    "table",
    [
        {"c": [1, "1", "a"]},
        [[1], ["1"], ["a"]],
        np.array([[1], ["1"], ["a"]], object),
        pd.DataFrame({"c": pd.Series(["1", 1, "a"], dtype=object)}),
        pd.DataFrame({"c": pd.Categorical([1, "1", "a"])}),
    ],
    ids=["mapping", "list", "array", "frame", "category"],
)
def test_values_that_are_one_as_text_are_refused(table):
    with pytest.raises(ValueError, match=r"Column '(c|x0)' has '1' both as text and as another"):
        Schema.read(table)


def test_a_level_and_a_column_of_one_name_are_refused():
    for other in ([1.0, 2.0], ["u", "v"]):
        with pytest.raises(ValueError, match="'hue' and 'hue=red' would both be called 'hue=red'"):
            Schema.read({"hue": ["red", "blue"], "hue=red": other})
    with pytest.raises(ValueError, match="would both be called 'a=b=c'"):
        Schema.read({"a": ["b=c", "a"], "a=b": ["c", "b"]})
    assert Schema.read({"hue": ["red", "blue"], "hue=blue": [1.0, 2.0]})[0].features


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_file_holds_is_refused(text):
    X, y = {"c": [0.0, 1.0, 0.0, 1.0]}, [0, 1, 0, 1]
    for table in ({text: X["c"]}, {"c": [text, "u", "v", "v"]}):
        with pytest.raises(ValueError, match=r"Column '.*': the text '.*' has a NUL or half of a"):
            GreedyModalTreeClassifier().fit(table, y)
    with pytest.raises(ValueError, match=r"y: the text '.*' has a NUL or half of a pair"):
        GreedyModalTreeClassifier().fit(X, [text, "u", text, "u"])


def test_a_name_with_no_words_is_a_level():
    for table in (np.array([["<NA>"], ["a"]], object), pd.DataFrame({"x0": ["<NA>", "a"]})):
        assert Schema.read(table)[0].columns[0].levels == ("<NA>", "a")


# --------------------------------------------------------------------------------- frames of others


@pytest.mark.parametrize("make", [pyarrow.table, lambda columns: polars.DataFrame(columns).lazy()])
def test_frames_of_arrow_and_lazy_ones_are_read(make):
    columns = {"a": [0.0, 1.0, 2.0, 3.0] * 5, "hue": ["u", "v", "v", "u"] * 5}
    X, y = make(columns), [0, 0, 1, 1] * 5
    model = GreedyModalTreeClassifier().fit(X, y)
    assert model.feature_names_in_.tolist() == ["a", "hue"]
    frame = pd.DataFrame(columns)
    np.testing.assert_array_equal(model.predict_proba(X), model.predict_proba(frame))
    assert model.explain(X) == model.explain(frame)
    permuted = PermutedColumns(GreedyModalTreeClassifier(), permutations=2).fit(X, y)
    assert permuted.predict(X).tolist() == permuted.predict(frame).tolist()
    found = [compare({"greedy": model}, each, y).cells["greedy"] for each in (X, frame)]
    assert found[0]["log_score"].value == found[1]["log_score"].value
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(make({"b": [1.0], "hue": ["u"]}))


def test_categories_of_intervals_and_of_arrow_are_read():
    intervals = pd.Categorical.from_codes([0, 1, -1, 1], pd.interval_range(0, 2))
    kind = pyarrow.dictionary(pyarrow.int32(), pyarrow.int32())
    codes = pd.Series([3, 1, None, 1], dtype=pd.ArrowDtype(kind))
    for column, levels, values in (
        (intervals, ("(0, 1]", "(1, 2]"), [0, 1, np.nan, 1]),
        (codes, ("1", "3"), [1, 0, np.nan, 0]),
    ):
        frame = pd.DataFrame({"c": column})
        for table in (frame, {"c": frame["c"]}):
            schema, matrix = Schema.read(table)
            assert schema.columns[0].levels == levels
            np.testing.assert_array_equal(matrix[:, 0], values)


def test_a_constant_truth_of_arrow_has_two_values():
    truth = pd.Series([True, True], dtype="bool[pyarrow]")
    for table in (pd.DataFrame({"ok": truth}), {"ok": truth}):
        schema, _ = Schema.read(table)
        assert schema.transform({"ok": ~truth})[:, 0].tolist() == [0, 0]


@pytest.mark.parametrize(
    "cell",
    [
        *("2024-02-29", "29.2.2024", "2/29/24", "29-Feb-2024", "Feb 29, 2024"),
        *("2024-02-29T12:30Z", "29.2.2024 7:05", "23:59", "7:05:01.5"),
        *("1 day, 0:00:00", "3 days 04:00:00.5", "-1 days +23:59:00", "2 days"),
    ],
)
def test_days_and_times_of_day_are_dates(cell):
    assert are_dates([cell, cell])
    assert not are_dates([cell, "later"])


@pytest.mark.parametrize(
    "cell", ["1.2.3", "2-29.2024", "may", "may 1", "1/2", "2024", "60:40", "24:00", "12:60", "1:2"]
)
def test_what_is_like_a_date_is_none(cell):
    assert not are_dates([cell])


def test_comments_above_a_header_are_skipped(write):
    table = read_table(write('# from a survey, 2024, by "us"\n#\na;b\n1;x\n2;y\n'))
    assert table.columns == ["a", "b"]
    assert table.place(1) == "line 5"
    assert read_table(write("#id,b\n1,x\n2,y\n")).columns == ["#id", "b"]
    assert read_table(write("# note\n#id,b\n1,x\n2,y\n")).columns == ["#id", "b"]


SIZES = ("S", "M", "L")


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.Categorical(["M", "S", None, "L"], SIZES, ordered=True)),
        polars.Series(["M", "S", None, "L"], dtype=polars.Enum(SIZES)),
        np.array(["M", "S", None, "L"], object),
    ],
    ids=["pandas", "polars", "ordered="],
)
def test_ordered_categories_are_one_column_of_cuts(column):
    ordered = {"size": SIZES} if isinstance(column, np.ndarray) else None
    table = {"size": column, "z": [1.0, 2.0, 3.0, 5.0]}
    schema, matrix = Schema.read(table, ordered=ordered)
    assert schema.features == ("size", "z", "size=missing")
    np.testing.assert_array_equal(matrix[:, 0], [1, 0, np.nan, 2])
    assert not schema.is_indicator[0]
    assert schema.level_condition(0, 1.5, True) == "size < L"
    assert schema.level_condition(0, 1.0, False) == "size >= M"
    assert Schema.from_json(schema.to_json()) == schema
    again, _ = Schema.read(schema.declared({"size": ["S", "S"], "z": [0.0, 1.0]}))
    assert again.columns[0].levels == SIZES
    assert again.columns[0].is_ordered
    with pytest.warns(TableWarning, match="level 'XL' was not seen .* is read as missing"):
        rows = schema.transform({"size": ["L", "XL"], "z": [0.0, 1.0]}, refuse_unknown=False)
    np.testing.assert_array_equal(rows[:, 0], [2, np.nan])


def test_ordered_names_columns_and_all_of_their_levels():
    table = {"grade": [1.0, 3.0, 2.0], "z": [1.0, 2.0, 5.0]}
    _, matrix = Schema.read(table, ordered={"grade": [3, 2, 1]})
    np.testing.assert_array_equal(matrix[:, 0], [2, 0, 1])
    for ordered, said in (
        ({"size": SIZES}, "ordered names 'size', which is no column"),
        ({"grade": [1, 2]}, r"Column 'grade', row 1: ordered\['grade'\] has no level '3'"),
        ({"grade": [1, 2, 2]}, "must list two levels or more, each once"),
        ({"grade": "SML"}, "must list two levels or more, each once"),
        ({"grade": None}, "must list two levels or more, each once"),
    ):
        with pytest.raises(ValueError, match=said):
            Schema.read(table, ordered=ordered)
    for other, ordered in ((table, ["grade"]), (sparse.csc_array(np.eye(2)), {"x0": [0, 1]})):
        with pytest.raises(TypeError, match="ordered must map names of columns of a table, not of"):
            Schema.read(other, ordered=ordered)
