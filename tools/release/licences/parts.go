package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what go list says of a package.
type listed struct {
	Dir, Root, ImportPath string
	Standard              bool
	EmbedFiles            []string
	Module                *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// partsOf are the modules of which a program is built for the system that GOOS and GOARCH name: this
// module first, then Go's library, then the others. What this module took in from elsewhere, with
// a licence in a folder of its own, is a part as well.
func partsOf(program string) ([]part, error) {
	out, err := exec.Command("go", "list", "-deps", "-json=Dir,Root,ImportPath,Standard,EmbedFiles,Module", program).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	goVersion, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return nil, err
	}
	modules := map[string]part{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if err := p.addTo(modules, strings.TrimSpace(string(goVersion))); err != nil {
			return nil, err
		}
	}
	var parts []part
	for _, p := range modules {
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.order(), b.order()) })
	return parts, nil
}

// order is by what parts are sorted.
func (p *part) order() string {
	switch p.version {
	case "":
		return "0" + p.name
	}
	if p.name == "the Go standard library" {
		return "1"
	}
	return "2" + p.name
}

// addTo adds the modules of a package.
func (p *listed) addTo(modules map[string]part, goVersion string) error {
	switch m := p.Module; {
	case p.Standard:
		modules[""] = part{name: "the Go standard library", version: goVersion, dirs: []string{p.Root}}
	case m == nil:
		return fmt.Errorf("%s is of no module", p.ImportPath)
	default:
		modules[m.Path] = part{name: m.Path, version: m.Version, dirs: []string{m.Dir}}
		if !m.Main {
			return nil
		}
		for _, file := range p.EmbedFiles {
			dir := filepath.Join(p.Dir, filepath.Dir(filepath.FromSlash(file)))
			found, err := licencesIn(dir, "")
			if err != nil {
				return err
			}
			if rel, err := filepath.Rel(m.Dir, dir); err == nil && len(found) > 0 && rel != "." {
				name := m.Path + "/" + filepath.ToSlash(rel)
				modules[name] = part{name: name, dirs: []string{dir}}
			}
		}
	}
	return nil
}
