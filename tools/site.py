"""Hooks of mkdocs for mkdocs.yml: the first page is README.md, links that leave docs/ lead to the
repository, headings have the anchors that GitHub gives them, and a link of the site that leads nowhere
ends the build."""

import os
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

SOURCE = "https://github.com/cuvmm/cuvmm/{kind}/main/{path}"
LINK = re.compile(r"(\]\()([^)\s]+)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.M | re.S)


def slug(text, separator):
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config):
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slug
    return config


def first_page(root, index):
    """README.md of the repository, as it would stand in docs/, and below it the index of documents."""
    with open(os.path.join(root, "README.md"), encoding="utf-8") as f:
        text = f.read()

    def inside(match):
        to = match[2]
        if not urlsplit(to).scheme:
            to = to[len("docs/"):] if to.startswith("docs/") else "../" + to
        return match[1] + to

    parts = CODE.split(text)
    text = "".join(p if i % 2 else re.sub(r'(src="|srcset="|\]\()([^)"\s]+)', inside, p) for i, p in enumerate(parts))
    return text + "\n" + re.sub(r"^# ", "## ", re.sub(r"^## ", "### ", index, flags=re.M))


def on_page_markdown(markdown, page, config, files):
    docs = config["docs_dir"]
    root = os.path.dirname(docs)
    if page.file.src_path == "README.md":
        markdown = first_page(root, markdown)
    here = os.path.dirname(os.path.join(docs, page.file.src_path))

    def lead(match):
        url = urlsplit(match[2])
        if url.scheme or not url.path:
            return match[0]
        path = os.path.normpath(os.path.join(here, unquote(url.path)))
        inside = os.path.commonpath([path, docs]) == docs
        if inside and os.path.isfile(path) or not os.path.exists(path):
            return match[0]  # what is not there mkdocs refuses
        kind = "tree" if os.path.isdir(path) else "blob"
        to = SOURCE.format(kind=kind, path=os.path.relpath(path, root))
        return match[1] + to + ("#" + url.fragment if url.fragment else "")

    parts = CODE.split(markdown)
    return "".join(p if i % 2 else LINK.sub(lead, p) for i, p in enumerate(parts))


class Links(HTMLParser):
    """What a page links to, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src", "srcset") and value and tag != "form":
                self.links.append(value)


def on_post_build(config):
    site, pages, broken = config["site_dir"], {}, []
    for folder, _, names in os.walk(site):
        for name in names:
            if name.endswith(".html") and name != "404.html":
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    pages[path] = Links(f.read())
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or link.startswith("//"):
                continue
            to = os.path.normpath(os.path.join(os.path.dirname(path), unquote(url.path))) if url.path else path
            if os.path.isdir(to):
                to = os.path.join(to, "index.html")
            if not os.path.isfile(to):
                broken.append(f"{os.path.relpath(path, site)}: {link}: no such file")
            elif url.fragment and to in pages and unquote(url.fragment) not in pages[to].anchors:
                broken.append(f"{os.path.relpath(path, site)}: {link}: no such anchor")
    if broken:
        raise SystemExit("\n".join(broken))
