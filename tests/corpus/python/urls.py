from urllib.parse import parse_qs, quote, unquote, urlencode, urljoin, urlsplit

url = urlsplit("https://user@example.com:8443/a%20b/c?x=1&x=2&y=%C3%A9#part")
print(url.hostname, url.port, unquote(url.path), parse_qs(url.query), url.fragment)
print(urlencode({"q": "a b&c", "lang": "de"}), quote("ü/ö"))
print(urljoin("https://example.com/docs/index.html", "../img/x.png"))
