package benchdoc

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/plot"
)

// These parts of a document are replaced. Their groups say by what: the words of a block; the file of a
// picture and its name; the path of a figure up to the data, its file, and its meaning.
var (
	block   = regexp.MustCompile(`(?ms)^<!-- bench (\S[^\n]*) -->\n.*?^<!-- /bench -->`)
	picture = regexp.MustCompile(`!\[[^\][]*\]\(((?:[\w./-]*/)?images/bench-([\w-]+)\.svg)\)`)
	figure  = regexp.MustCompile(`\[[^\][]*\]\(((?:[\w./-]*/)?benchmarks/)([\w/-]+\.json) "([^"]+)"\)`)
)

// comment begins and ends a block.
var comment = regexp.MustCompile(`(?m)^<!-- /?bench\b`)

// fill replaces the blocks, pictures and figures of a text.
func (f *filler) fill(text string) ([]byte, error) {
	if n, blocks := len(comment.FindAllString(text, -1)), len(block.FindAllString(text, -1)); n != 2*blocks {
		return nil, fmt.Errorf("%d comments of %d blocks: each has a start and an end", n, blocks)
	}
	text, err := replace(text, block, f.block)
	text, noPicture := replace(text, picture, f.picture)
	text, noFigure := replace(text, figure, f.figure)
	return []byte(text), cmp.Or(err, noPicture, noFigure, unlinked(text))
}

// replace replaces what a pattern finds by what with makes of its groups.
func replace(text string, pattern *regexp.Regexp, with func(m []string) (string, error)) (filled string, err error) {
	return pattern.ReplaceAllStringFunc(text, func(found string) string {
		s, wrong := with(pattern.FindStringSubmatch(found))
		err = cmp.Or(err, wrong)
		return s
	}), err
}

// picture draws a picture of a report, and says in words what it shows.
func (f *filler) picture(m []string) (string, error) {
	for name, r := range f.reports {
		chart, ok := strings.CutPrefix(m[2], strings.TrimSuffix(name, ".json")+"-")
		if !ok {
			continue
		}
		for _, c := range plot.Charts(r) {
			if c.Name == chart {
				f.made["images/bench-"+m[2]+".svg"] = []byte(c.SVG(plot.Style))
				return fmt.Sprintf("![%s. %s](%s)", c.Title, c.Alt, m[1]), nil
			}
		}
	}
	return "", fmt.Errorf("no report in docs/%s has the picture %s", dataDir, m[2])
}

// figure is a figure of a report or of another program, with its link.
func (f *filler) figure(m []string) (text string, err error) {
	path, file, what := m[1], m[2], m[3]
	if r := f.reports[file]; r != nil {
		text, err = r.Figure(what)
	} else if text = f.programs[file][what]; text == "" {
		err = errors.New("there is no such figure")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", file, what, err)
	}
	return fmt.Sprintf("[%s](%s%s %q)", text, path, file, what), nil
}

var (
	// measured is a line with what looks like a figure.
	measured = regexp.MustCompile(`(?m)^.*\d[\d,.]* ?(?:ns|us|ms|s|GB/s|times as)\b.*$`)
	// exempt text needs no link: generated text, code, and a section about others' figures.
	exempt = regexp.MustCompile("(?:" + strings.Join([]string{
		block.String(), picture.String(), figure.String(), "(?ms)^```.*?^```", "`[^`\n]*`", `(?m)^    .*$`, `(?ms)^## Figures of others.*?(?:^## |\z)`,
	}, ")|(?:") + ")")
)

// unlinked returns an error for a measured figure that is no link to data.
func unlinked(text string) error {
	if found := measured.FindString(exempt.ReplaceAllString(text, "…")); found != "" {
		return fmt.Errorf("%q has a figure that is no link to the data that it comes from", found)
	}
	return nil
}
