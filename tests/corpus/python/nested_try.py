def parse(text):
    try:
        return int(text)
    except ValueError as error:
        raise RuntimeError(f"bad number {text!r}") from error
    finally:
        print("parsed", text)


print(parse("12"))
parse("twelve")
