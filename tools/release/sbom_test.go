package main

import (
	"encoding/json"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	spdxIDForm   = regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`)
	creatorForm  = regexp.MustCompile(`^(Person|Organization|Tool): .+`)
	packageForm  = regexp.MustCompile(`^pkg:[a-z]+/\S+@\S+$`)
	checksumForm = map[string]*regexp.Regexp{"SHA1": regexp.MustCompile(`^[0-9a-f]{40}$`), "SHA256": regexp.MustCompile(`^[0-9a-f]{64}$`)}
)

// checkSBOM checks what SPDX 2.3 requires of a document.
func checkSBOM(t *testing.T, data []byte) {
	t.Helper()
	var d spdxDocument
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.SPDXID != "SPDXRef-DOCUMENT" || d.Name == "" {
		t.Errorf("document %s %s %s %q", d.SPDXVersion, d.DataLicense, d.SPDXID, d.Name)
	}
	if u, err := url.Parse(d.DocumentNamespace); err != nil || !u.IsAbs() || u.Fragment != "" {
		t.Errorf("namespace %q: %v", d.DocumentNamespace, err)
	}
	if created, err := time.Parse("2006-01-02T15:04:05Z", d.CreationInfo.Created); err != nil || created.IsZero() {
		t.Errorf("created %q: %v", d.CreationInfo.Created, err)
	}
	if len(d.CreationInfo.Creators) == 0 || !creatorForm.MatchString(d.CreationInfo.Creators[0]) {
		t.Errorf("creators %q", d.CreationInfo.Creators)
	}
	ids := map[string]bool{d.SPDXID: true}
	add := func(id string) {
		if !spdxIDForm.MatchString(id) || ids[id] {
			t.Errorf("identifier %q is not valid, or there twice", id)
		}
		ids[id] = true
	}
	checksums := func(of string, sums []spdxChecksum) {
		for _, sum := range sums {
			if form := checksumForm[sum.Algorithm]; form == nil || !form.MatchString(sum.Value) {
				t.Errorf("%s: checksum %+v", of, sum)
			}
		}
	}
	for _, p := range d.Packages {
		add(p.SPDXID)
		checksums(p.Name, p.Checksums)
		if p.Name == "" || p.VersionInfo == "" || p.DownloadLocation == "" || p.LicenseConcluded == "" || p.LicenseDeclared == "" || p.CopyrightText == "" {
			t.Errorf("package %+v", p)
		}
		if p.FilesAnalyzed != (p.VerificationCode != nil) || p.FilesAnalyzed && !checksumForm["SHA1"].MatchString(p.VerificationCode.Value) {
			t.Errorf("package %s: files analyzed %v, verification code %v", p.Name, p.FilesAnalyzed, p.VerificationCode)
		}
		if len(p.ExternalRefs) != 1 || p.ExternalRefs[0].Category != "PACKAGE-MANAGER" || p.ExternalRefs[0].Type != "purl" || !packageForm.MatchString(p.ExternalRefs[0].Locator) {
			t.Errorf("package %s: references %+v", p.Name, p.ExternalRefs)
		}
	}
	for _, f := range d.Files {
		add(f.SPDXID)
		checksums(f.FileName, f.Checksums)
		if !strings.HasPrefix(f.FileName, "./") || !slices.ContainsFunc(f.Checksums, func(c spdxChecksum) bool { return c.Algorithm == "SHA1" }) {
			t.Errorf("file %+v", f)
		}
	}
	described := false
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("relationship %+v is of something that is not there", r)
		}
		described = described || r.Element == d.SPDXID && r.Type == "DESCRIBES"
	}
	if !described || len(d.Files) != len(programs)+1 {
		t.Errorf("%d files; the document describes something: %v", len(d.Files), described)
	}
	for _, want := range []string{"skiff", "stdlib", "libseccomp", "glibc", "github.com/vishvananda/netlink"} {
		if !slices.ContainsFunc(d.Packages, func(p spdxPackage) bool { return p.Name == want }) {
			t.Errorf("there is no package %s", want)
		}
	}
}

func TestModulePackages(t *testing.T) {
	const sum = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8 X:some",
		Main:      debug.Module{Path: "skiff/runtime", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.org/Upper/v2", Version: "v2.0.0+incompatible", Sum: sum},
			{Path: "example.org/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/new", Version: "v1.1.0", Sum: sum}},
		},
	}
	r := &release{version: testVersion}
	p := newProgram("shim", info)
	p.libraries = []library{{"libseccomp", "2.5.4", "LGPL-2.1-only"}}
	type line struct{ name, version, location, purl, checksum string }
	var got []line
	for _, linked := range r.linkedInto(p) {
		l := line{name: linked.Name, version: linked.VersionInfo, location: linked.DownloadLocation, purl: linked.ExternalRefs[0].Locator}
		if len(linked.Checksums) > 0 {
			l.checksum = linked.Checksums[0].Value
		}
		got = append(got, l)
	}
	const hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	want := []line{
		{"stdlib", "1.26.8", "https://go.dev/dl/go1.26.8.src.tar.gz", "pkg:golang/stdlib@1.26.8", ""},
		{"skiff/runtime", testVersion, "NOASSERTION", "pkg:golang/skiff/runtime@" + testVersion, ""},
		{"example.org/Upper/v2", "v2.0.0+incompatible", "NOASSERTION", "pkg:golang/example.org/upper/v2@v2.0.0%2Bincompatible", hex},
		{"example.org/new", "v1.1.0", "NOASSERTION", "pkg:golang/example.org/new@v1.1.0", hex},
		{"libseccomp", "2.5.4", "NOASSERTION", "pkg:generic/libseccomp@2.5.4", ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("packages\n%+v\nwant\n%+v", got, want)
	}
	if packageID("a/b", "1") == packageID("a-b", "1") {
		t.Error("two packages have one identifier")
	}
}
