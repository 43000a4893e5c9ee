import inspect
import pydoc

print(pydoc.render_doc(SystemExit, renderer=pydoc.plaintext))
print(inspect.classify_class_attrs(SystemExit))
