package benchdoc

import (
	"fmt"
	"regexp"
	"strings"
)

// figureLink is a link to data with a title: the figure, the path up to the data, the file, and
// what the figure is.
var figureLink = regexp.MustCompile(`\[([^\][]*)\]\(((?:[\w./-]*/)?benchmarks/)(programs/)?([\w-]+\.json) "([^"]+)"\)`)

// figures replaces the figures of a text that are links to data. What looks like a figure and is
// none is an error, but for code, and what stands in a section about others' figures.
func (f *filler) figures(text string) (string, error) {
	var wrong []string
	filled := figureLink.ReplaceAllStringFunc(text, func(link string) string {
		m := figureLink.FindStringSubmatch(link)
		figure, err := f.figure(m[3] != "", m[4], m[5])
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		return fmt.Sprintf("[%s](%s%s%s %q)", figure, m[2], m[3], m[4], m[5])
	})
	wrong = append(wrong, unlinked(filled)...)
	if len(wrong) > 0 {
		return "", fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return filled, nil
}

func (f *filler) figure(program bool, file, what string) (string, error) {
	if program {
		figure, ok := f.programs[file][what]
		if !ok {
			return "", fmt.Errorf("programs/%s has no %s", file, what)
		}
		return figure, nil
	}
	r := f.data[file]
	if r == nil {
		return "", fmt.Errorf("no %s in docs/%s", file, dataDir)
	}
	figure, err := r.Figure(what)
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return figure, err
}

// othersFigures begins the heading of a section whose figures are not ours.
const othersFigures = "## Figures of others"

var (
	measured = regexp.MustCompile(`\d[\d,.]* ?(?:ns|us|ms|s|GB/s|times as)\b`)
	code     = regexp.MustCompile("`[^`]*`")
)

// unlinked are the measured figures of a text that are no links to data.
func unlinked(text string) (list []string) {
	exempt, fenced, block := false, false, false
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case strings.HasPrefix(line, "## "):
			exempt = strings.HasPrefix(line, othersFigures)
		case strings.HasPrefix(line, blockStart):
			block = true
		case strings.HasPrefix(line, blockEnd):
			block = false
		}
		if exempt || fenced || block || strings.HasPrefix(line, "    ") {
			continue
		}
		line = code.ReplaceAllString(figureLink.ReplaceAllString(line, ""), "")
		for _, figure := range measured.FindAllString(line, -1) {
			list = append(list, fmt.Sprintf("line %d: %q is no link to the data that it comes from", n+1, figure))
		}
	}
	return list
}
