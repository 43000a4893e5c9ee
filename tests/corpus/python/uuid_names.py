import uuid

print(uuid.uuid5(uuid.NAMESPACE_DNS, "example.com"), uuid.UUID(int=5).version)
print(len(str(uuid.uuid4())), uuid.uuid4() != uuid.uuid4())
