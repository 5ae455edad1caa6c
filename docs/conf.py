"""The site: Sphinx reads Markdown (MyST) and docstrings (numpydoc). ./scripts/docs builds it."""

import re

import orthogp

project = "orthogp"
author = "The orthogp developers"
copyright = "The orthogp developers, MIT licence"  # noqa: A001
version = release = orthogp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
# Headings are named as on GitHub, so that links to them work in both places.
myst_heading_anchors = 4
autosummary_generate = False
autodoc_member_order = "bysource"
# The docstrings give the types, in words.
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
numpydoc_show_class_members = False
# Backticks in docstrings mean code.
default_role = "code"

# Furo brings what it shows: no fonts and no scripts from other servers.
html_theme = "furo"
html_title = "orthogp"
html_static_path = ["static"]
html_css_files = ["extra.css"]
html_copy_source = False

# Pages of the repository's root, which pages of the same name in docs include.
_FROM_ROOT = re.compile(r"\]\((?:\.\./)+(CONTRIBUTING|CHANGELOG)\.md")
# What stands in backticks, which is left as it is.
_CODE = re.compile(r"(``.+?``|`[^`]+`)")
# Marks that mean something to reStructuredText and are mathematics in a docstring: |x|, a*b, x_.
_MARKS = re.compile(r"[|*]|(?<=\w)_(?!\w)")


def link_to_pages(app, name, source):
    """Links to pages of the root lead to the pages that include them."""
    source[0] = _FROM_ROOT.sub(r"](/\1.md", source[0])


def keep_marks(app, what, name, thing, options, lines):
    """Docstrings say what they say: absolute values, products and names stay what they are."""
    in_example = False
    for i, line in enumerate(lines):
        if line.strip():
            in_example = in_example and line.startswith(" ")
        if not in_example:
            parts = _CODE.split(line)
            parts[::2] = [_MARKS.sub(r"\\\g<0>", part) for part in parts[::2]]
            lines[i] = "".join(parts)
        in_example = in_example or line.endswith("::")


def leave_out(app, what, name, thing, skip, options):
    """Leave out what scikit-learn adds for the routing of metadata."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def setup(app):
    """Connect the three."""
    app.connect("source-read", link_to_pages)
    app.connect("autodoc-process-docstring", keep_marks, priority=100)
    app.connect("autodoc-skip-member", leave_out)
