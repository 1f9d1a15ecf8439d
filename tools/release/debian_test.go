package main

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skiff/tools/archive"
)

func TestDebianVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.0.0":                        "1.0.0",
		"v1.0.0-rc.1":                   "1.0.0~rc.1",
		"v0.1.0-dev":                    "0.1.0~dev",
		"v1.0.0-5-gabcdef012345":        "1.0.0+5.gabcdef012345",
		"v1.0.0-beta2-17-g0123456789ab": "1.0.0~beta2+17.g0123456789ab",
	} {
		if got, err := debianVersion(version); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", version, got, err, want)
		}
	}
	for _, version := range []string{"", "1.0.0", "v1.0", "v1.0.0 ", "v1.0.0-", "v1.0.0/../x", "latest"} {
		if got, err := debianVersion(version); err == nil {
			t.Errorf("%q is %s", version, got)
		}
	}
}

// readAr returns the members of an ar archive.
func readAr(t *testing.T, data []byte) (members []archive.Member) {
	t.Helper()
	data, ok := bytes.CutPrefix(data, []byte("!<arch>\n"))
	if !ok {
		t.Fatal("this is no ar archive")
	}
	for len(data) > 0 {
		const header = 60
		if len(data) < header || string(data[header-2:header]) != "`\n" {
			t.Fatalf("header %q", data[:min(header, len(data))])
		}
		size, err := strconv.Atoi(strings.TrimSpace(string(data[48:58])))
		if err != nil || header+size > len(data) {
			t.Fatalf("size %d, %v", size, err)
		}
		members = append(members, archive.Member{Name: strings.TrimSpace(string(data[:16])), Data: data[header : header+size]})
		data = data[min(header+size+size%2, len(data)):]
	}
	return members
}

// checkDebian reads a package of a release. runc is the program of that name.
func checkDebian(t *testing.T, path, runc string) {
	members := readAr(t, readFile(t, path))
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	if !slices.Equal(names, []string{"debian-binary", "control.tar.gz", "data.tar.gz"}) || string(members[0].Data) != "2.0\n" {
		t.Fatalf("members %q, version %q", names, members[0].Data)
	}
	control, files := untar(t, gunzip(t, members[1].Data)), untar(t, gunzip(t, members[2].Data))
	for _, want := range []string{"Package: skiff\n", "Version: 1.2.3~rc.1\n", "Architecture: " + runtime.GOARCH + "\n", "Maintainer: Some One <one@example.org>\n", "Installed-Size: ", "\nDescription: "} {
		if !strings.Contains(control["./control"], want) {
			t.Errorf("control lacks %q:\n%s", want, control["./control"])
		}
	}
	if control["./conffiles"] != "/etc/skiff/package.conf\n" || files["./etc/skiff/package.conf"] == "" {
		t.Errorf("configuration files %q", control["./conffiles"])
	}
	if files["./usr/lib/skiff/runc"] != runc || files["./usr/bin/skiff"] != "../lib/skiff/skiff" || files["./usr/share/doc/skiff/copyright"] == "" {
		t.Error("programs or the licence are missing")
	}
	sums := 0
	for line := range strings.Lines(control["./md5sums"]) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if want := fmt.Sprintf("%x", md5.Sum([]byte(files["./"+name]))); sum != want || files["./"+name] == "" {
			t.Errorf("%s has the sum %s, want %s", name, sum, want)
		}
		sums++
	}
	if sums < len(programs) {
		t.Errorf("%d sums", sums)
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Log("dpkg-deb is not installed: the package was read by this test alone")
		return
	}
	for _, args := range [][]string{{"--info", path}, {"--contents", path}, {"--fsys-tarfile", path}} {
		out, err := exec.Command("dpkg-deb", args...).CombinedOutput()
		if err != nil {
			t.Errorf("dpkg-deb %s: %v\n%s", args[0], err, out)
		}
		if args[0] == "--contents" && !strings.Contains(string(out), "-rwxr-xr-x root/root") {
			t.Errorf("contents\n%s", out)
		}
	}
}

// dpkgHost is a directory in which dpkg installs packages, without being root and without a chroot: scripts get it as DPKG_ROOT.
type dpkgHost struct {
	t    *testing.T
	root string
}

func newDpkgHost(t *testing.T) dpkgHost {
	t.Helper()
	h := dpkgHost{t, t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log", "run/systemd/system", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("var/lib/dpkg/status", "")
	return h
}

func (h dpkgHost) write(name, text string) {
	h.t.Helper()
	writeFile(h.t, filepath.Join(h.root, name), text)
}

// dpkg runs dpkg and returns its output and what skiff was called with.
func (h dpkgHost) dpkg(args ...string) (output, calls string) {
	h.t.Helper()
	cmd := exec.Command("dpkg", append([]string{"--root=" + h.root, "--force-not-root", "--force-script-chrootless", "--force-bad-path"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("dpkg %q: %v\n%s", args, err, out)
	}
	file := filepath.Join(h.root, "calls")
	data, _ := os.ReadFile(file) // not there: no calls
	_ = os.Remove(file)
	return string(out), string(data)
}

// install installs a version of the package in which skiff is a script that records its arguments.
func (h dpkgHost) install(version string) (output, calls string) {
	h.t.Helper()
	script := "#!/bin/sh\nfor argument; do printf '%s|' \"$argument\"; done >>\"$DPKG_ROOT/calls\"\necho >>\"$DPKG_ROOT/calls\"\n"
	p := debianPackage{version: version, architecture: runtime.GOARCH, maintainer: "Some One <one@example.org>", date: time.Unix(1, 0), files: []archive.File{
		{Name: installDir + "skiff", Mode: 0o755, Data: []byte(script)}, {Name: "usr/bin/skiff", Link: "../lib/skiff/skiff"},
	}}
	var out bytes.Buffer
	if err := p.write(&out); err != nil {
		h.t.Fatal(err)
	}
	path := filepath.Join(h.t.TempDir(), "skiff.deb")
	writeFile(h.t, path, out.String())
	return h.dpkg("--install", path)
}

// want checks the output of dpkg and the calls of skiff.
func (h dpkgHost) want(what string, output, calls, wantOutput, wantCalls string) {
	h.t.Helper()
	if calls != wantCalls || !strings.Contains(output, wantOutput) {
		h.t.Errorf("%s: skiff was called with %q, want %q; output, want %q:\n%s", what, calls, wantCalls, wantOutput, output)
	}
}

// TestInstallDebianPackage installs, upgrades, removes and purges the package with dpkg.
func TestInstallDebianPackage(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed")
	}
	const unit = "etc/systemd/system/skiff.service"
	h := newDpkgHost(t)
	check := func(what string, output, calls, wantOutput, wantCalls string) {
		t.Helper()
		h.want(what, output, calls, wantOutput, wantCalls)
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(h.root, name))
		return err == nil
	}

	output, calls := h.install("1.0.0~rc.1")
	check("first installation", output, calls, "run 'skiff install server' or 'skiff install agent'", "")
	if info, err := os.Stat(filepath.Join(h.root, configurationFile)); err != nil || info.Mode().Perm() != 0o600 || !exists("usr/bin/skiff") {
		t.Errorf("files: %v, %v", info, err)
	}
	h.write(unit, "[Service]\nExecStart=/usr/lib/skiff/skiff server --no-node\n")
	output, calls = h.install("1.0.0")
	check("upgrade of an installed service", output, calls, "", "install|refresh|\n")
	h.write(configurationFile, "# mine\nserver\n--data-dir=/srv/my cluster\n\n--no-node") // without the end of the last line
	output, calls = h.install("1.0.1")
	check("upgrade with a configuration", output, calls, "", "install|server|--data-dir=/srv/my cluster|--no-node|\n")
	if err := os.Remove(filepath.Join(h.root, configurationFile)); err != nil {
		t.Fatal(err)
	}
	output, calls = h.install("1.0.1+1")
	check("upgrade after the configuration was removed", output, calls, "", "install|refresh|\n")
	h.write(configurationFile, "# nothing\n")
	h.write(unit, "[Service]\nExecStart=/usr/local/bin/skiff server\n")
	output, calls = h.install("1.0.2")
	check("upgrade beside a service of another skiff", output, calls, "", "")
	output, calls = h.dpkg("--remove", "skiff")
	check("removal beside a service of another skiff", output, calls, "", "")
	h.install("1.0.2")
	h.write(unit, "[Service]\nExecStart=/usr/lib/skiff/skiff agent\n")
	output, calls = h.dpkg("--remove", "skiff")
	check("removal", output, calls, "", "uninstall|--keep-data|\n")
	if exists("usr/lib/skiff") || !exists(configurationFile) {
		t.Error("after the removal, programs are there, or the configuration is not")
	}
	if err := os.MkdirAll(filepath.Join(h.root, "var/lib/skiff"), 0o700); err != nil {
		t.Fatal(err)
	}
	output, calls = h.dpkg("--purge", "skiff")
	check("purge", output, calls, "The state of the cluster is kept in /var/lib/skiff", "")
	if exists("etc/skiff") || !exists("var/lib/skiff") {
		t.Error("after the purge, the configuration is there, or the state is not")
	}
}

// Without systemd the package installs files and nothing else, as in an image.
func TestInstallDebianPackageWithoutSystemd(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed")
	}
	h := newDpkgHost(t)
	if err := os.RemoveAll(filepath.Join(h.root, "run")); err != nil {
		t.Fatal(err)
	}
	output, calls := h.install("1.0.0")
	h.want("installation", output, calls, "", "")
	output, calls = h.dpkg("--remove", "skiff")
	h.want("removal", output, calls, "", "")
}
