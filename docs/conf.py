# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the pages. The package has to be installed: the reference is read from it."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

import design_pages  # noqa: E402
from sphinx import addnodes  # noqa: E402

import cuda.core  # noqa: E402

project = "cuda.core memory"
author = "the authors of cuda-core"
project_copyright = "the authors, Apache-2.0"
release = cuda.core.__version__
version = re.match(r"\d+\.\d+", release)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["README.md", "_build", "_ext"]
source_suffix = {".md": "markdown"}
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "groupwise"
# Members of the base classes too, whose names are nobody's business, but not of Python's own.
PYTHON_BASES = (
    "object, BaseException, Exception, RuntimeError, Warning, UserWarning, Enum, IntEnum, str, int, Protocol"
)
autodoc_default_options = {"members": True, "inherited-members": PYTHON_BASES}
autodoc_typehints = "none"  # the numpydoc sections say the types, with their units
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = False

nitpicky = True
# Standard types, and words of the numpydoc sections that are no class of this package.
nitpick_ignore_regex = [("py:class", r"(?!cuda\.core).*")]

html_theme = "furo"
html_title = "cuda.core memory"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The design pages stand beside the code; the site shows them as they are.
design_pages.bring(HERE.parent / "design", HERE / "design")


def find_from_the_top(app, env, node, contnode):
    """Resolve a name that a docstring in a submodule says as its users do: without ``cuda.core.`` in front."""
    domain = env.get_domain("py")
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or target.startswith("cuda."):
        return None
    name = f"cuda.core.{target}"
    if name not in domain.objects:  # a class that is returned and never imported
        private = [
            known
            for known in domain.objects
            if known.startswith("cuda.core._") and known.endswith(f".{target}")
        ]
        name = private[0] if private else name
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], name, node, contnode)


# The arguments of a class that nobody makes by calling it: it only raises.
ANYTHING = r"\(\*args(: object)?, \*\*kwargs(: object)?\)( -> None)?"


def without_self(app, what, name, obj, options, signature, returns):
    """Leave out what nobody gives: the first argument of compiled functions, the arguments of what only raises."""
    if what == "property" and (
        signature or returns
    ):  # compiled ones begin with a signature; on a page they are no calls
        return "", ""
    if what == "class" and signature and re.fullmatch(ANYTHING, signature):
        return "", returns
    return re.sub(r"^\((self|cls)(, )?(/, )?", "(", signature) if signature else signature, returns


def without_type(app, what, name, obj, options, lines):
    """Leave out the line with which Cython says the type of a property: the docstring says it, and more."""
    if (
        what in ("attribute", "property")
        and lines
        and re.match(rf"[\w.]*\b{name.rpartition('.')[2]}: ", lines[0])
    ):
        del lines[:2]


def without_type_of_property(app, what, name, obj, options, lines):
    """Leave out the line with which the compiler begins the docstring of a property; what follows says the type."""
    if what == "property" and lines and re.fullmatch(r"\w+\.\w+: .*", lines[0]):
        del lines[:2]


def without_private_modules(app, doctree):
    """Leave out in which private module a class stands that is returned and never imported."""
    for name in list(doctree.findall(addnodes.desc_addname)):
        if "._" in name.astext():
            name.parent.remove(name)


def setup(app):
    app.connect("doctree-read", without_private_modules)
    app.connect("autodoc-process-docstring", without_type_of_property)
    app.connect("autodoc-process-signature", without_self)
    app.connect("autodoc-process-docstring", without_type, priority=400)  # before the sections are read
    app.connect("missing-reference", find_from_the_top)
