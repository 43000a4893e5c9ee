import csv

sample = "a;b;c\n1;2;'x;y'\n"
dialect = csv.Sniffer().sniff(sample)
print(dialect.delimiter, csv.Sniffer().has_header(sample))
for row in csv.reader(sample.splitlines(), delimiter=";", quotechar="'"):
    print(row)
