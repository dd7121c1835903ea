"""What is drawn on axes, found by the identifiers (`gid`) of artists."""


def by_gid(ax, kind=object):
    """Map identifiers to the artists of a kind that are drawn on axes and on axes inside them."""
    return {
        artist.get_gid(): artist
        for artist in ax.findobj(lambda artist: isinstance(artist, kind) and artist.get_gid())
    }


def legend_labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def edges(band):
    """Lower and upper edge of an area between two curves, and where they lie: x, low, high."""
    vertices = band.get_paths()[0].vertices
    half = (len(vertices) - 1) // 2
    return vertices[1:half, 0], vertices[1:half, 1], vertices[-2:half:-1, 1]
