import warnings

warnings.warn("user")
warnings.warn("deprecated", DeprecationWarning)
warnings.warn("pending", PendingDeprecationWarning)
warnings.warn("import", ImportWarning)
warnings.warn("resource", ResourceWarning)
x = "\d"
print(1 is 1)


def inner():
    warnings.warn("stacked", stacklevel=2)


inner()
inner()
import imp
