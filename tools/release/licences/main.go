// Command licences lists the licence of each module of which a program is built, and fails if one
// is not known or not permissive:
//
//	licences [-o FILE] PACKAGE
//
// FILE gets the texts, for a package's copyright file. It runs in the module's root.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// permissive are the licences that a package may have. All that they ask of who passes a program
// on is their text, or a name.
var permissive = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "FTL", "ISC", "MIT", "OFL-1.1", "Zlib",
}

// chosen are the files that count where a module offers a choice.
var chosen = map[string]string{
	"github.com/golang/freetype": "licenses/ftl.txt", // or the GPL
}

func main() {
	out := flag.String("o", "", "file for the texts")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: licences [-o FILE] PACKAGE")
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), *out); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(list io.Writer, program, out string) error {
	parts, err := partsOf(program)
	if err != nil {
		return err
	}
	c, err := assets.DefaultClassifier()
	if err != nil {
		return err
	}
	var wrong []error
	for i := range parts {
		wrong = append(wrong, parts[i].classify(c))
		fmt.Fprintf(list, "%-50s %-40s %s\n", parts[i].name, parts[i].version, strings.Join(parts[i].licences, " and "))
	}
	if err := errors.Join(wrong...); err != nil || out == "" {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(writeTexts(f, parts), f.Close())
}

// part is a module, or another part with a licence of its own.
type part struct {
	name, version string
	dirs          []string // where its licences are
	licences      []string
	files         []string
}

// licenceFile are the names of files with licences; those that name the authors alone are not.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-.].*)?$`)

// classify reads the licences of p. All texts that a module has must be known and permissive.
func (p *part) classify(c *classifier.Classifier) error {
	for _, dir := range p.dirs {
		notices, err := filepath.Glob(filepath.Join(dir, "NOTICE*")) // the Apache License has them passed on
		if err != nil {
			return err
		}
		names, err := licencesIn(dir, chosen[p.name])
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			found := licencesOf(c, text)
			if len(found) == 0 {
				return fmt.Errorf("%s: %s is no licence that is known", p.name, name)
			}
			for _, l := range found {
				if !slices.Contains(permissive, l) {
					return fmt.Errorf("%s: %s is %s, which is not permissive", p.name, name, l)
				}
			}
			p.files = append(p.files, name)
			p.licences = append(p.licences, found...)
		}
		p.files = append(p.files, notices...)
	}
	if len(p.licences) == 0 {
		return fmt.Errorf("%s: no licence in %s", p.name, strings.Join(p.dirs, ", "))
	}
	slices.Sort(p.licences)
	p.licences = slices.Compact(p.licences)
	return nil
}

// licencesIn are the files with licences in dir.
func licencesIn(dir, choice string) (files []string, err error) {
	if choice != "" {
		return []string{filepath.Join(dir, filepath.FromSlash(choice))}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && licenceFile.MatchString(e.Name()) && !strings.HasSuffix(e.Name(), "-link.txt") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// licencesOf are the licences of a text, by their SPDX names.
func licencesOf(c *classifier.Classifier, text []byte) (names []string) {
	for _, m := range c.Match(c.Normalize(text)).Matches {
		if m.MatchType == "License" && !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	}
	return names
}

// inUTF8 converts a text that is in Latin 1.
func inUTF8(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	runes := make([]rune, len(text))
	for i, b := range text {
		runes[i] = rune(b)
	}
	return string(runes)
}

// writeTexts writes which part has which licence, and each text once.
func writeTexts(w io.Writer, parts []part) error {
	var b strings.Builder
	b.WriteString("This program is built of the parts below. Each is under the licences that stand behind it.\n\n")
	users := map[string][]string{}
	var texts []string
	for _, p := range parts {
		fmt.Fprintf(&b, "%s: %s\n", strings.TrimSpace(p.name+" "+p.version), strings.Join(p.licences, " and "))
		for _, f := range p.files {
			text, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			of := inUTF8(text)
			if users[of] == nil {
				texts = append(texts, of)
			}
			users[of] = append(users[of], p.name)
		}
	}
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 78), strings.Join(users[text], ", "), strings.TrimSpace(text))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
