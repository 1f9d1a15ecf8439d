package main

import (
	"debug/buildinfo"
	"fmt"
	"io/fs"
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
	seen := map[string]bool{}      // what several programs have
	add := func(name, dir string, depth int) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		licenses, err := readLicenses(dir, depth)
		for _, l := range licenses {
			if !slices.Contains(names[l.text], name+l.part) {
				names[l.text] = append(names[l.text], name+l.part)
			}
		}
		return err
	}
	for _, p := range built {
		if p.goVersion != "" {
			// Below are programs and tests that are not linked.
			if err := add("Go "+p.goVersion, s.goroot, 0); err != nil {
				return nil, err
			}
		}
		for _, m := range append([]module{p.main}, p.modules...) {
			if m.path == "" || m.isOwn() {
				continue
			}
			if err := add(m.path+" "+m.version, s.moduleDir(m), maxDepth); err != nil {
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

// license is a licence of a module or, with the name of its directory in parentheses, of a part of it.
type license struct{ part, text string }

// maxDepth is how deep in a module its parts are.
const maxDepth = 16

// readLicenses reads the licences in a directory and, down to a depth, below it: a module may contain code of others, with licences of their own. A
// directory without any is an error: what may not be distributed is not.
func readLicenses(dir string, depth int) ([]license, error) {
	var licenses []license
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := entry.Name(); {
		case entry.IsDir() && path != "." && (strings.Count(path, "/") >= depth || isNotLinked(name)):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !licenseFile.MatchString(name) || strings.HasSuffix(name, ".go"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(dir, path))
		l := license{text: string(text)}
		if part := filepath.Dir(path); part != "." {
			l.part = " (" + part + ")"
		}
		licenses = append(licenses, l)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read licence: %w", err)
	}
	if !slices.ContainsFunc(licenses, func(l license) bool { return l.part == "" }) {
		return nil, fmt.Errorf("%s has no licence", dir)
	}
	return licenses, nil
}

// isNotLinked reports whether a directory has no code that the go command links.
func isNotLinked(name string) bool {
	return name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
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
