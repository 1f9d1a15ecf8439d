package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const testVersion = "v1.2.3-rc.1"

// testPrograms makes a directory of programs: one of skiff's, under all names.
func testPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "skiff"), "skiff/cmd/skiff-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range append([]string{pauseProgram, demoProgram}, programs[1:]...) {
		if err := os.Link(filepath.Join(dir, "skiff"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, librariesFile), "runc libseccomp 2.5.4 LGPL-2.1-only\npause.tar glibc 2.36 LGPL-2.1-or-later\n")
	writeFile(t, filepath.Join(dir, pauseArchive), "an image")
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newTestRelease makes a release of programs and returns its directory.
func newTestRelease(t *testing.T, dir string) (*release, error) {
	t.Helper()
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules, goroot, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	lgpl := filepath.Join(t.TempDir(), "LGPL")
	writeFile(t, lgpl, "GNU LESSER GENERAL PUBLIC LICENSE\n")
	r, targets, err := parse([]string{
		"-version", testVersion, "-commit", "0123456789ab", "-date", "2026-11-16T18:27:03+02:00", "-maintainer", "Some One <one@example.org>", "-source", "../..",
		"-modules", modules, "-goroot", goroot, "-lgpl", lgpl, "-out", t.TempDir(), runtime.GOARCH + "=" + dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, r.run(targets)
}

func readFile(t *testing.T, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// untar returns the files of an archive: content of files, target of links, nothing of directories.
func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = h.Linkname + string(data)
	}
}

func gunzip(t *testing.T, data []byte) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRelease makes a release twice, from programs in other directories and at another time.
func TestRelease(t *testing.T) {
	first, second := testPrograms(t), t.TempDir()
	for _, entry := range append([]string{pauseProgram, demoProgram, pauseArchive, librariesFile}, programs...) {
		writeFile(t, filepath.Join(second, entry), string(readFile(t, first, entry)))
		if err := os.Chtimes(filepath.Join(second, entry), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := newTestRelease(t, first)
	if err != nil {
		t.Fatal(err)
	}
	again, err := newTestRelease(t, second)
	if err != nil {
		t.Fatal(err)
	}
	name := "skiff-" + testVersion + "-linux-" + runtime.GOARCH
	debian := "skiff_1.2.3~rc.1_" + runtime.GOARCH + ".deb"
	want := []string{"SHA256SUMS", name + "-airgap-images.tar", name + "-image.tar", name + ".spdx.json", name + ".tar.gz", debian}
	var sums []string
	for _, file := range want {
		data := readFile(t, r.out, file)
		if !bytes.Equal(data, readFile(t, again.out, file)) {
			t.Errorf("%s has other bytes the second time", file)
		}
		if file != "SHA256SUMS" {
			sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(data), file))
		}
	}
	if got := string(readFile(t, r.out, "SHA256SUMS")); got != strings.Join(sums, "") {
		t.Errorf("SHA256SUMS\n%swant\n%s", got, strings.Join(sums, ""))
	}
	if entries, err := os.ReadDir(r.out); err != nil || len(entries) != len(want) {
		t.Errorf("the release has %v, %v", entries, err)
	}
	t.Run("archive", func(t *testing.T) { checkArchive(t, untar(t, gunzip(t, readFile(t, r.out, name+".tar.gz"))), name+"/") })
	t.Run("Debian package", func(t *testing.T) { checkDebian(t, filepath.Join(r.out, debian), string(readFile(t, first, "runc"))) })
	t.Run("SBOM", func(t *testing.T) { checkSBOM(t, readFile(t, r.out, name+".spdx.json")) })
	t.Run("images", func(t *testing.T) {
		checkImages(t, readFile(t, r.out, name+"-image.tar"), "localhost/skiff/skiff:"+testVersion)
		checkImages(t, readFile(t, r.out, name+"-airgap-images.tar"), "localhost/skiff/pause:1", "localhost/skiff/demo:1")
	})
}

func checkArchive(t *testing.T, files map[string]string, dir string) {
	for _, want := range append([]string{pauseArchive}, programs...) {
		if files[dir+"bin/"+want] == "" {
			t.Errorf("%s is missing", want)
		}
	}
	for name, want := range map[string]string{
		"LICENSE": "Apache License", "README.md": "# skiff", "docs/ARCHITECTURE.md": "# Architecture", "docs/decisions/0005-runtime.md": "container runtime", "demo/demo.yaml": "kind: Deployment",
		"THIRD-PARTY-LICENSES.txt": "libseccomp 2.5.4 (LGPL-2.1-only), linked statically into runc",
	} {
		if !strings.Contains(files[dir+name], want) {
			t.Errorf("%s has no %q", name, want)
		}
	}
	licenses := files[dir+"THIRD-PARTY-LICENSES.txt"]
	for _, want := range []string{"Go " + runtime.Version(), "The Go Authors", "github.com/vishvananda/netlink v", "GNU LESSER GENERAL PUBLIC LICENSE"} {
		if !strings.Contains(licenses, want) {
			t.Errorf("the licences lack %q", want)
		}
	}
	// Modules with the same licence share its text.
	if n := strings.Count(licenses, "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"); n == 0 || n > 5 {
		t.Errorf("the Apache licence is there %d times", n)
	}
}

func checkImages(t *testing.T, data []byte, names ...string) {
	files := untar(t, bytes.NewReader(data))
	var docker []struct{ RepoTags, Layers []string }
	if err := json.Unmarshal([]byte(files["manifest.json"]), &docker); err != nil {
		t.Fatal(err)
	}
	var tags []string
	for _, image := range docker {
		tags = append(tags, image.RepoTags...)
		layer := untar(t, gunzip(t, []byte(files[image.Layers[0]])))
		switch image.RepoTags[0] {
		case "localhost/skiff/pause:1":
			if layer["pause"] == "" {
				t.Error("the image of sandboxes has no program")
			}
		case "localhost/skiff/demo:1":
			if layer["web"] == "" {
				t.Error("the demo's image has no program")
			}
		default:
			if layer["usr/bin/skiff"] != "../lib/skiff/skiff" || layer["usr/lib/skiff/runc"] == "" || layer["usr/share/doc/skiff/THIRD-PARTY-LICENSES.txt"] == "" {
				t.Errorf("%s lacks programs or licences", image.RepoTags)
			}
		}
	}
	if !slices.Equal(tags, names) {
		t.Errorf("images %v, want %v", tags, names)
	}
}

// Programs that would not run on the host or in a container are not released.
func TestUnusablePrograms(t *testing.T) {
	dir := testPrograms(t)
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	if err := (target{runtime.GOARCH, dir}).check(); err != nil {
		t.Error(err)
	}
	if err := (target{other, dir}).check(); err == nil || !strings.Contains(err.Error(), "it is for EM_") {
		t.Errorf("another architecture: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "runc")); err != nil {
		t.Fatal(err)
	}
	if err := (target{runtime.GOARCH, dir}).check(); err == nil || !strings.Contains(err.Error(), "program runc") {
		t.Errorf("a missing program: %v", err)
	}
	// The go command may be static; the shell of a host is not.
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "runc"), string(readFile(t, shell)))
	if err := (target{runtime.GOARCH, dir}).check(); err == nil || !strings.Contains(err.Error(), "not linked statically") {
		t.Errorf("a dynamic program: %v", err)
	}
}

// A module without a licence may not be distributed.
func TestModuleWithoutLicense(t *testing.T) {
	s := licenseSources{modules: t.TempDir()}
	m := module{path: "example.org/Upper", version: "v1.0.0-Beta"}
	dir := s.moduleDir(m)
	if want := filepath.Join(s.modules, "example.org/!upper@v1.0.0-!beta"); dir != want {
		t.Errorf("directory %s, want %s", dir, want)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "main.go"), "package main\n")
	built := []program{{name: "x", main: module{path: "skiff"}, modules: []module{m}}}
	if _, err := (licenseSources{modules: filepath.Join(dir, "absent")}).text(built); err == nil || !strings.Contains(err.Error(), "read licence") {
		t.Errorf("a module that is not there: %v", err)
	}
	if _, err := s.text(built); err == nil || !strings.Contains(err.Error(), "has no licence") {
		t.Errorf("error %v", err)
	}
	writeFile(t, filepath.Join(dir, "LICENSE.md"), "Do what you like.\n")
	writeFile(t, filepath.Join(dir, "NOTICE"), "By me.\n")
	writeFile(t, filepath.Join(dir, "license.go"), "package main // no licence\n")
	// Code of others in the module has a licence of its own; what is not linked needs none.
	for _, part := range []string{"third_party/other", "testdata/third", "vendor/fourth"} {
		if err := os.MkdirAll(filepath.Join(dir, part), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, part, "LICENSE"), "That of "+part+".\n")
	}
	built = append(built, built[0])
	text, err := s.text(built)
	if want := "example.org/Upper v1.0.0-Beta (third_party/other)\n\nThat of third_party/other.\n"; !strings.Contains(string(text), want) {
		t.Errorf("licences %s lack %q", text, want)
	}
	for _, not := range []string{"no licence", "third.", "fourth."} {
		if strings.Contains(string(text), not) {
			t.Errorf("the licences have %q", not)
		}
	}
	if err != nil || !strings.Contains(string(text), "example.org/Upper v1.0.0-Beta\n\nDo what you like.\n") || !strings.Contains(string(text), "By me.") {
		t.Errorf("licences %s, %v", text, err)
	}
}

func TestCommandLineErrors(t *testing.T) {
	good := []string{"-version=v1.0.0", "-date=2026-01-02T15:04:05Z", "-maintainer=a <a@example.org>"}
	for arg, want := range map[string]string{
		"-version=1.0":   "-version",
		"-date=today":    "-date",
		"-maintainer=me": "-maintainer",
		"mips=bin":       "amd64 or arm64",
		"amd64":          "ARCHITECTURE=DIRECTORY",
		"":               "no ARCHITECTURE=DIRECTORY",
	} {
		args := slices.DeleteFunc(append(slices.Clone(good), arg), func(a string) bool { return a == "" })
		if _, _, err := parse(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", arg, err, want)
		}
	}
}
