package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/licenseclassifier/v2/assets"
)

// A licence that is not permissive is refused, and so are a text that is none and a module without one.
func TestWhatIsRefused(t *testing.T) {
	c, err := assets.DefaultClassifier()
	if err != nil {
		t.Fatal(err)
	}
	text := func(name string) string {
		b, err := assets.ReadLicenseFile("License/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, test := range []struct{ file, text, want string }{
		{"LICENSE", text("MIT/pristine.txt"), ""},
		{"COPYING", text("Apache-2.0/pristine.txt"), ""},
		{"LICENSE.md", text("GPL-3.0/license.txt"), "GPL-3.0, which is not permissive"},
		{"LICENSE-CODE", text("MIT/pristine.txt") + "\n\n" + text("AGPL-3.0/license.txt"), "not permissive"},
		{"LICENCE", text("MPL-2.0/license.txt"), "not permissive"},
		{"LICENSE", "You may use this on Tuesdays.", "no licence that is known"},
		{"README", text("MIT/pristine.txt"), "no licence in"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := part{name: "example.com/m", dirs: []string{dir}}
		err := p.classify(c)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v instead of %q", test.file, err, test.want)
		}
	}
}

// A text that several parts have is written once.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "LICENSE")
	if err := os.WriteFile(file, []byte("The text.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := writeTexts(&b, []part{
		{name: "example.com/a", version: "v1.0.0", licences: []string{"MIT"}, files: []string{file}},
		{name: "example.com/b", version: "v2.0.0", licences: []string{"MIT"}, files: []string{file}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"example.com/a v1.0.0: MIT\n", "example.com/b v2.0.0: MIT\n", "example.com/a, example.com/b\n\nThe text.\n"} {
		if strings.Count(b.String(), want) != 1 {
			t.Errorf("%q instead of %q once", b.String(), want)
		}
	}
}
