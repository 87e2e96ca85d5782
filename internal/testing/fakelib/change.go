package fakelib

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// Change is how one copy of a library differs from the compiled one.
type Change struct {
	missing []string // symbols that it does not have
	setting string   // an int of the library, by its name after fake_
	value   int
}

// Missing leaves out symbols, by the names under which a program looks for them.
func Missing(symbols ...string) Change { return Change{missing: symbols} }

// Set gives a setting of the library another value.
func Set(setting string, value int) Change { return Change{setting: setting, value: value} }

// apply makes the changes in the bytes of a library.
func apply(library []byte, changes []Change) error {
	file, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, c := range changes {
		for _, symbol := range c.missing {
			if err := hide(library, file, symbol); err != nil {
				return err
			}
		}
		if c.setting != "" {
			if err := set(library, file, symbols, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// hide renames a symbol. The loader finds the old name's hash, and then another name.
func hide(library []byte, file *elf.File, symbol string) error {
	names := file.Section(".dynstr")
	if names == nil {
		return fmt.Errorf("leave out %s: there are no names", symbol)
	}
	text := library[names.Offset : names.Offset+names.Size]
	at := bytes.Index(text, []byte("\x00"+symbol+"\x00"))
	if at < 0 {
		return fmt.Errorf("leave out %s: no such symbol", symbol)
	}
	text[at+1] = '-'
	return nil
}

func set(library []byte, file *elf.File, symbols []elf.Symbol, c Change) error {
	for _, s := range symbols {
		if s.Name != "fake_"+c.setting || int(s.Section) >= len(file.Sections) {
			continue
		}
		data := file.Sections[s.Section]
		if data.Type == elf.SHT_NOBITS || s.Size != 4 {
			break
		}
		binary.NativeEndian.PutUint32(library[s.Value-data.Addr+data.Offset:], uint32(int32(c.value))) //nolint:gosec // small numbers
		return nil
	}
	return fmt.Errorf("set %s: no such setting in the file", c.setting)
}
