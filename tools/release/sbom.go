package main

import (
	"cmp"
	"crypto/sha1" // SPDX requires it
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"skiff/tools/archive"
)

// The types of an SPDX 2.3 document, as far as it is used here.
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Files             []spdxFile         `json:"files"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string            `json:"SPDXID"`
		Name             string            `json:"name"`
		VersionInfo      string            `json:"versionInfo"`
		DownloadLocation string            `json:"downloadLocation"`
		FilesAnalyzed    bool              `json:"filesAnalyzed"`
		VerificationCode *spdxVerification `json:"packageVerificationCode,omitempty"`
		Checksums        []spdxChecksum    `json:"checksums,omitempty"`
		LicenseConcluded string            `json:"licenseConcluded"`
		LicenseDeclared  string            `json:"licenseDeclared"`
		CopyrightText    string            `json:"copyrightText"`
		ExternalRefs     []spdxReference   `json:"externalRefs,omitempty"`
		PrimaryPurpose   string            `json:"primaryPackagePurpose"`
	}
	spdxVerification struct {
		Value string `json:"packageVerificationCodeValue"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxFile struct {
		SPDXID           string         `json:"SPDXID"`
		FileName         string         `json:"fileName"`
		FileTypes        []string       `json:"fileTypes"`
		Checksums        []spdxChecksum `json:"checksums"`
		LicenseConcluded string         `json:"licenseConcluded"`
		CopyrightText    string         `json:"copyrightText"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const (
	spdxDocumentID  = "SPDXRef-DOCUMENT"
	noAssertion     = "NOASSERTION"
	apacheLicense   = "Apache-2.0"
	purposeLibrary  = "LIBRARY"
	purposeProgram  = "APPLICATION"
	spdxTimeFormat  = "2006-01-02T15:04:05Z"
	goModuleHash    = "h1:" // the prefix of hashes in go.sum
	standardLibrary = "stdlib"
)

// writeSBOM writes what the programs of an architecture are made of.
func (r *release) writeSBOM(w io.Writer, t target, built []program) error {
	d, err := r.sbom(t, built)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// sbom is the document: a package for the release with its programs as files, and one for each module and library that is linked into them.
func (r *release) sbom(t target, built []program) (*spdxDocument, error) {
	name := fmt.Sprintf("skiff-%s-linux-%s", r.version, t.architecture)
	d := &spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: spdxDocumentID, Name: name,
		CreationInfo: spdxCreation{Created: r.date.Format(spdxTimeFormat), Creators: []string{"Tool: skiff-release-" + r.version}},
	}
	root := spdxPackage{
		SPDXID: "SPDXRef-Release", Name: "skiff", VersionInfo: r.version, DownloadLocation: noAssertion, FilesAnalyzed: true,
		LicenseConcluded: noAssertion, LicenseDeclared: apacheLicense, CopyrightText: noAssertion, PrimaryPurpose: purposeProgram,
		ExternalRefs: packageURL(fmt.Sprintf("pkg:generic/skiff@%s?arch=%s", r.version, t.architecture)),
	}
	d.relate(spdxDocumentID, "DESCRIBES", root.SPDXID)
	var err error
	if d.Files, err = spdxFiles(t.programFiles("bin/")); err != nil {
		return nil, err
	}
	root.VerificationCode = &spdxVerification{verificationCode(d.Files)}
	for _, f := range d.Files {
		d.relate(root.SPDXID, "CONTAINS", f.SPDXID)
	}
	packages := map[string]spdxPackage{root.SPDXID: root}
	for _, p := range built {
		if !slices.ContainsFunc(d.Files, func(f spdxFile) bool { return f.SPDXID == fileID(p.name) }) {
			continue // a program of an image of its own
		}
		for _, linked := range r.linkedInto(p) {
			packages[linked.SPDXID] = linked
			d.relate(fileID(p.name), "DEPENDS_ON", linked.SPDXID)
		}
	}
	for _, p := range packages {
		d.Packages = append(d.Packages, p)
	}
	slices.SortFunc(d.Packages, func(a, b spdxPackage) int { return cmp.Compare(a.SPDXID, b.SPDXID) })
	// Unique for each content, and the same for the same.
	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	d.DocumentNamespace = fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", name, sha256.Sum256(content))
	return d, nil
}

func (d *spdxDocument) relate(element, relation, related string) {
	d.Relationships = append(d.Relationships, spdxRelationship{element, relation, related})
}

// linkedInto are the packages of a program: modules, Go's standard library and C libraries.
func (r *release) linkedInto(p program) []spdxPackage {
	var linked []spdxPackage
	if p.goVersion != "" {
		version := strings.TrimPrefix(p.goVersion, "go")
		linked = append(linked, spdxPackage{
			SPDXID: packageID(standardLibrary, version), Name: standardLibrary, VersionInfo: version, DownloadLocation: "https://go.dev/dl/go" + version + ".src.tar.gz",
			LicenseConcluded: noAssertion, LicenseDeclared: "BSD-3-Clause", CopyrightText: noAssertion, PrimaryPurpose: purposeLibrary,
			ExternalRefs: packageURL("pkg:golang/" + standardLibrary + "@" + version),
		})
		for _, m := range append([]module{p.main}, p.modules...) {
			linked = append(linked, r.modulePackage(m))
		}
	}
	for _, l := range p.libraries {
		linked = append(linked, spdxPackage{
			SPDXID: packageID(l.name, l.version), Name: l.name, VersionInfo: l.version, DownloadLocation: noAssertion,
			LicenseConcluded: noAssertion, LicenseDeclared: l.license, CopyrightText: noAssertion, PrimaryPurpose: purposeLibrary,
			ExternalRefs: packageURL("pkg:generic/" + l.name + "@" + l.version),
		})
	}
	return linked
}

// modulePackage is the package of a Go module.
func (r *release) modulePackage(m module) spdxPackage {
	p := spdxPackage{
		Name: m.path, VersionInfo: m.version, DownloadLocation: noAssertion,
		LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion, PrimaryPurpose: purposeLibrary,
	}
	if m.isOwn() {
		p.VersionInfo, p.LicenseDeclared = r.version, apacheLicense
	}
	p.SPDXID = packageID(m.path, p.VersionInfo)
	// The package URL of a Go module is in lower case.
	p.ExternalRefs = packageURL("pkg:golang/" + strings.ToLower(m.path) + "@" + strings.ReplaceAll(p.VersionInfo, "+", "%2B"))
	// The hash of go.sum is a SHA-256 of the hashes of the module's files.
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.sum, goModuleHash)); err == nil && len(sum) == sha256.Size {
		p.Checksums = []spdxChecksum{{"SHA256", hex.EncodeToString(sum)}}
	}
	return p
}

func packageURL(locator string) []spdxReference {
	return []spdxReference{{"PACKAGE-MANAGER", "purl", locator}}
}

// packageID identifies a package in the document. SPDX allows letters, digits, dots and hyphens in it; the hash keeps apart what is the same without
// the others.
func packageID(name, version string) string {
	sum := sha256.Sum256([]byte(name + "@" + version))
	return fmt.Sprintf("SPDXRef-Package-%s-%x", identifier(name), sum[:4])
}

func fileID(name string) string { return "SPDXRef-File-" + identifier(name) }

func identifier(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, name)
}

// spdxFiles describes files of the release.
func spdxFiles(files []archive.File) ([]spdxFile, error) {
	var described []spdxFile
	for _, f := range files {
		content, _, err := f.Open()
		if err != nil {
			return nil, err
		}
		short, long := sha1.New(), sha256.New() // SPDX requires it
		_, err = io.Copy(io.MultiWriter(short, long), content)
		content.Close()
		if err != nil {
			return nil, err
		}
		kind := "BINARY"
		if strings.HasSuffix(f.Name, ".tar") {
			kind = "ARCHIVE"
		}
		described = append(described, spdxFile{
			SPDXID: fileID(strings.TrimPrefix(f.Name, "bin/")), FileName: "./" + f.Name, FileTypes: []string{kind},
			Checksums:        []spdxChecksum{{"SHA1", hex.EncodeToString(short.Sum(nil))}, {"SHA256", hex.EncodeToString(long.Sum(nil))}},
			LicenseConcluded: noAssertion, CopyrightText: noAssertion,
		})
	}
	slices.SortFunc(described, func(a, b spdxFile) int { return cmp.Compare(a.SPDXID, b.SPDXID) })
	return described, nil
}

// verificationCode is the SHA-1 of the sorted SHA-1 sums of all files.
func verificationCode(files []spdxFile) string {
	var sums []string
	for _, f := range files {
		sums = append(sums, f.Checksums[0].Value)
	}
	slices.Sort(sums)
	return fmt.Sprintf("%x", sha1.Sum([]byte(strings.Join(sums, "")))) // SPDX requires it
}
