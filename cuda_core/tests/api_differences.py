# SPDX-License-Identifier: Apache-2.0
"""What differs between two public interfaces, each difference under a name of its own.

A difference is named by a facet and a key: ``missing Program``, ``call Buffer.close``, ``type Buffer.close``,
``type Buffer.copy_to(stream)`` for a parameter. It maps to what the one and the other say.
"""

# Of these a stub says nothing that could be promised: no annotation, or C's word for "some object".
NO_PROMISE = {None, "Any", "object"}
# Bases outside of the package that programs can rely on in an except clause or isinstance.
OUTSIDE = {
    "Exception",
    "RuntimeError",
    "UserWarning",
    "str",
    "Enum",
    "IntEnum",
    "NamedTuple",
    "MutableSet",
    "Protocol",
}


def is_promised(text):
    return text not in NO_PROMISE and not text.endswith("_t")  # a C type that nobody gave to Python


def owner_of(key):
    return key.rpartition(".")[0]


def is_plain(name):
    """Tell whether every object has a method of this name."""
    return hasattr(object, name)


class Comparison:
    """Compares what one interface (``theirs``) promises with what the other (``ours``) has."""

    def __init__(self, theirs, ours):
        self.theirs = theirs
        self.ours = ours
        self.found = {}
        self.compared = 0

    def run(self):
        for key, entry in self.theirs.items():
            if key in self.ours:
                self.compared += 1
                self._compare(key, entry, self.ours[key])
            elif self._is_reported(key, entry, self.theirs, self.ours):
                self.found["missing", key] = ("", "")
        for key, entry in self.ours.items():
            name = key.rpartition(".")[2]
            is_new = key not in self.theirs and not is_plain(name)
            if is_new and self._is_reported(key, entry, self.ours, self.theirs):
                self.found["added", key] = ("", "")
        return {name: pair for name, pair in self.found.items() if not self._is_inherited(*name, pair)}

    def _is_reported(self, key, entry, here, there):
        """Tell whether the lack of a key is a difference of its own, and not that of the class it belongs to."""
        if entry.kind in ("class", "enum"):
            return entry.exported  # what only signatures name is missed where they are
        owner = owner_of(key)
        return owner not in here or here[owner].kind not in ("class", "enum") or owner in there

    def _note(self, facet, key, theirs, ours):
        if theirs != ours:
            self.found[facet, key] = (theirs, ours)

    def _compare(self, key, theirs, ours):
        self._note("kind", key, theirs.kind, ours.kind)
        self._note("call", key, theirs.call(), ours.call())
        if None not in (theirs.writable, ours.writable):
            self._note("writable", key, str(theirs.writable), str(ours.writable))
        lost = {base for base in theirs.bases - ours.bases if self._is_promised_base(base)}
        self._note("bases", key, ", ".join(sorted(lost)), "")
        if key.startswith("_"):
            return  # a private class that a public signature names: its types are nobody's promise
        if is_promised(theirs.type):
            self._note("type", key, theirs.type, str(ours.type))
        of_ours = {parameter.name: parameter for parameter in ours.parameters}
        for parameter in theirs.parameters:
            if parameter.name in of_ours and is_promised(parameter.type):
                ours_type = of_ours[parameter.name].type
                self._note("type", f"{key}({parameter.name})", parameter.type, str(ours_type))

    def _is_promised_base(self, base):
        entry = self.theirs.get(base)
        return base in OUTSIDE or (entry is not None and entry.exported)

    def _is_inherited(self, facet, key, pair):
        """Tell whether a public base class, on both sides, has the very same difference."""
        owner = key.partition("(")[0].rpartition(".")[0]
        rest = key[len(owner) + 1 :] if owner else ""
        if owner not in self.theirs or owner not in self.ours:
            return False
        bases = self.theirs[owner].bases & self.ours[owner].bases
        return any(self.found.get((facet, f"{base}.{rest}")) == pair for base in bases)


def is_field_of_constructor(key, found):
    """Tell whether a field's type is already reported as that of a constructor's parameter."""
    facet, name = key
    owner, _, field = name.rpartition(".")
    return facet == "type" and ("type", f"{owner}.__init__({field})") in found


def differences(theirs, ours):
    """Return the differences by (facet, key), and how many keys both sides have."""
    comparison = Comparison(theirs, ours)
    found = comparison.run()
    return {k: v for k, v in found.items() if not is_field_of_constructor(k, found)}, comparison.compared
