import random
import json
import string

print(random.__file__, json.__file__, string.__file__)
