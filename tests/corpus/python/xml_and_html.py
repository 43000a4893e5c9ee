import html
import xml.etree.ElementTree as tree
from html.parser import HTMLParser
from urllib.parse import parse_qs, quote, urljoin, urlparse

root = tree.fromstring("<books><book id='1'><title>A &amp; B</title></book><book id='2'/></books>")
for book in root:
    print(book.get("id"), book.findtext("title", "no title"))


class Links(HTMLParser):
    def handle_starttag(self, tag, attributes):
        if tag == "a":
            print("link", dict(attributes)["href"])


Links().feed('<p><a href="/one">1</a> <a href="two?x=1&amp;y=2">2</a></p>')
print(html.escape("<b> & 'c'"), urljoin("http://host/a/b", "../c"), quote("a b/ü"))
print(urlparse("https://user@host:8080/p?q=1#f").port, parse_qs("a=1&a=2&b="))
