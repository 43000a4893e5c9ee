import socket
import urllib.request

server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), timeout=5)
connection, _ = server.accept()
client.sendall(b"ping")
print(connection.recv(10))
for thing in (client, connection, server):
    thing.close()
try:
    urllib.request.urlopen("http://127.0.0.1:9/", timeout=5)
except OSError as error:
    print(type(error).__name__, error)
