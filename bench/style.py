"""How the plots of the documentation look; drawn without a screen."""

import matplotlib as mpl

mpl.use("Agg")

INK, RED, BLUE, GREY = "#1f2328", "#c4342b", "#2a78b8", "#8a8f98"

mpl.rcParams.update(
    {
        "figure.dpi": 110,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.titlelocation": "left",
        # The same figures are the same file.
        "svg.hashsalt": "kvpressure",
    }
)
