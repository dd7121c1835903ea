"""Trees of fitted estimators, written for other programs: text, source, other libraries' trees.

All but `shap_values` and `to_html` take one tree, the most probable one unless another rank is
named. They need hard trees whose splits look at one column each. `to_sql`, `to_json` and `to_html`
write sums of trees as tables of the effects of columns and of pairs of columns.
"""

from bdtppl.export.lookup_page import to_html
from bdtppl.export.markdown import to_markdown
from bdtppl.export.onnx_model import to_onnx
from bdtppl.export.python_source import to_python
from bdtppl.export.scikit_learn import to_sklearn
from bdtppl.export.shap_explanation import shap_values
from bdtppl.export.sql import to_sql
from bdtppl.export.tree_json import to_json

__all__ = [
    "shap_values",
    "to_html",
    "to_json",
    "to_markdown",
    "to_onnx",
    "to_python",
    "to_sklearn",
    "to_sql",
]
