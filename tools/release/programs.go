package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// program is a program of the release and what it is made of.
type program struct {
	name string
	// main is the module of its main package, modules those that are linked besides; goVersion has Go's own.
	main      module
	modules   []module
	goVersion string
	libraries []library
}

// module is a Go module. sum is the hash of go.sum.
type module struct{ path, version, sum string }

// isOwn reports whether a module is of skiff's own source, whose version is that of the release.
func (m module) isOwn() bool { return m.path == "skiff" || strings.HasPrefix(m.path, "skiff/") }

// library is a C library that is linked statically.
type library struct{ name, version, license string }

// readPrograms reads what the programs are made of, from the programs themselves.
func (t target) readPrograms() ([]program, error) {
	libraries, err := readLibraries(t.path(librariesFile))
	if err != nil {
		return nil, err
	}
	var built []program
	for _, name := range append([]string{demoProgram}, programs...) {
		info, err := buildinfo.ReadFile(t.path(name))
		if err != nil {
			return nil, fmt.Errorf("read build information: %w", err)
		}
		p := newProgram(name, info)
		p.libraries = libraries[name]
		built = append(built, p)
	}
	// The image of sandboxes has a program in C.
	return append(built, program{name: pauseArchive, libraries: libraries[pauseArchive]}), nil
}

func newProgram(name string, info *debug.BuildInfo) program {
	version, _, _ := strings.Cut(info.GoVersion, " ") // what follows are experiments
	p := program{name: name, main: newModule(&info.Main), goVersion: version}
	for _, dependency := range info.Deps {
		p.modules = append(p.modules, newModule(dependency))
	}
	return p
}

// newModule is the module that is linked: a replaced one is not.
func newModule(m *debug.Module) module {
	if m.Replace != nil {
		m = m.Replace
	}
	return module{path: m.Path, version: m.Version, sum: m.Sum}
}

// readLibraries reads the list of C libraries by program. A line has program, library, version and licence.
func readLibraries(file string) (map[string][]library, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	libraries := map[string][]library{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			return nil, fmt.Errorf("%s: %q is not a program, a library, its version and its licence", file, strings.TrimSpace(line))
		}
		libraries[fields[0]] = append(libraries[fields[0]], library{fields[1], fields[2], fields[3]})
	}
	return libraries, nil
}

// licenseSources are where the licences of what is linked are found.
type licenseSources struct {
	// modules is Go's module cache, goroot the directory of Go, lgpl the text of the licence of C libraries.
	modules, goroot, lgpl string
}

// licenseFile matches the files of a module that have to be distributed with it.
var licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents)([.-].*)?$`)

// separator stands between the parts of the text of licences.
var separator = strings.Repeat("=", 80) + "\n"

// text is the licences of everything that is linked and not of skiff's own, each once, under the names of what it is for.
func (s licenseSources) text(built []program) ([]byte, error) {
	names := map[string][]string{} // by the licence's text
	add := func(name, dir string) error {
		texts, err := licenseTexts(dir)
		for _, text := range texts {
			if !slices.Contains(names[text], name) {
				names[text] = append(names[text], name)
			}
		}
		return err
	}
	for _, p := range built {
		if p.goVersion != "" {
			if err := add("Go "+p.goVersion, s.goroot); err != nil {
				return nil, err
			}
		}
		for _, m := range append([]module{p.main}, p.modules...) {
			if m.path == "" || m.isOwn() {
				continue
			}
			if err := add(m.path+" "+m.version, s.moduleDir(m)); err != nil {
				return nil, err
			}
		}
		for _, l := range p.libraries {
			text, err := os.ReadFile(s.lgpl)
			if err != nil {
				return nil, fmt.Errorf("read licence of %s: %w", l.name, err)
			}
			name := fmt.Sprintf("%s %s (%s), linked statically into %s; link it with another version by building %s from its source", l.name, l.version, l.license, p.name, p.name)
			names[string(text)] = append(names[string(text)], name)
		}
	}
	return formatLicenses(names), nil
}

func formatLicenses(names map[string][]string) []byte {
	var parts []string
	for text, used := range names {
		slices.Sort(used)
		parts = append(parts, strings.Join(used, "\n")+"\n\n"+strings.TrimRight(text, "\n")+"\n")
	}
	slices.Sort(parts)
	return []byte("skiff's own licence is in the file LICENSE. Its programs contain what is listed here, under these licences.\n" +
		separator + strings.Join(parts, separator))
}

// licenseTexts reads the licences in a directory. A directory without any is an error: what may not be distributed is not.
func licenseTexts(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read licence: %w", err)
	}
	var texts []string
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenseFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read licence: %w", err)
		}
		texts = append(texts, string(text))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s has no licence", dir)
	}
	return texts, nil
}

// moduleDir is the directory of a module in the module cache.
func (s licenseSources) moduleDir(m module) string {
	return filepath.Join(s.modules, escape(m.path)+"@"+escape(m.version))
}

// escape writes upper-case letters of a module's path or version as the module cache and module proxies do: file systems may ignore case.
func escape(path string) string {
	var b strings.Builder
	for _, r := range path {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
