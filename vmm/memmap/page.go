package memmap

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
	"sync"
)

//go:embed page uplot
var assets embed.FS

// page is the parts of the page that never change.
type page struct {
	template      *template.Template
	style         template.CSS
	script        template.JS
	styleHash     string
	scriptHash    string
	assemblyError error
}

// scripts are the files of the program in the page, in their order.
var scripts = []string{"base.js", "data.js", "draw.js", "card.js", "growth.js", "ranges.js", "detail.js", "pools.js", "main.js"}

var assembled = sync.OnceValue(func() (p page) {
	read := func(name string) string {
		b, err := assets.ReadFile(name)
		if err != nil {
			p.assemblyError = err
		}
		return strings.TrimSpace(string(b)) + "\n"
	}
	license := strings.ReplaceAll(read("uplot/LICENSE"), "*/", "* /")
	program := "/*!\nuPlot\n" + license + "*/\n" + read("uplot/uPlot.iife.min.js") + "(() => {\n\"use strict\";\n"
	for _, name := range scripts {
		program += read("page/" + name)
	}
	program += "})();\n"
	style := read("uplot/uPlot.min.css") + read("page/page.css")
	p.script, p.style = template.JS(program), template.CSS(style) // #nosec: constants
	p.scriptHash, p.styleHash = hash(program), hash(style)
	t, err := template.New("page").Parse(read("page/page.html"))
	if err != nil {
		p.assemblyError = err
	}
	p.template = t
	return p
})

// hash is what a Content-Security-Policy allows a text by.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// writePage writes the page, with a snapshot in it if it is for a file.
func (m *Map) writePage(w io.Writer, data []byte) error {
	p := assembled()
	if p.assemblyError != nil {
		return fmt.Errorf("write map: %w", p.assemblyError)
	}
	connect := "'self'"
	if data != nil {
		connect = "'none'"
	}
	err := p.template.Execute(w, struct {
		Title, Policy string
		Style         template.CSS
		Script        template.JS
		Data          template.JS
	}{
		m.o.Title,
		fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src %s; img-src data:; base-uri 'none'; form-action 'none'", p.scriptHash, p.styleHash, connect),
		p.style, p.script, template.JS(data), // #nosec: by encode, which escapes <, > and &
	})
	if err != nil {
		return fmt.Errorf("write map: %w", err)
	}
	return nil
}

// WriteHTML takes a snapshot and writes the page with it: one file that needs neither the program
// nor a network.
func (m *Map) WriteHTML(w io.Writer) error { return m.writePage(w, encode(m.Snapshot())) }
