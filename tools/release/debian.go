package main

import (
	"bytes"
	"crypto/md5"
	"embed"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"skiff/tools/archive"
)

// maintainerFiles are the scripts of the package, and the file in which an administrator says what the package installs.
//
//go:embed debian
var maintainerFiles embed.FS

// configurationFile is kept as the administrator has changed it.
const configurationFile = "etc/skiff/package.conf"

// releaseVersion matches skiff's versions: that of a tag, maybe of a pre-release, and commits after it as 'git describe' counts them.
var releaseVersion = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([a-zA-Z][0-9A-Za-z.]*))?(?:-(\d+)-(g[0-9a-f]+))?$`)

// debianVersion is the version of the package. Debian sorts a tilde before the end: pre-releases come before the release, and later commits after it.
func debianVersion(version string) (string, error) {
	m := releaseVersion.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("%q is not a version such as v1.0.0, v1.0.0-rc.1 or v1.0.0-5-gabcdef0", version)
	}
	debian := m[1]
	if m[2] != "" {
		debian += "~" + m[2]
	}
	if m[3] != "" {
		debian += "+" + m[3] + "." + m[4]
	}
	return debian, nil
}

// debianPackage is the content of a Debian package.
type debianPackage struct {
	version, architecture, maintainer string
	date                              time.Time
	files                             []archive.File
}

// debianFile is the name of the package's file, as Debian's tools have it.
func (r *release) debianFile(t target) string {
	version, _ := debianVersion(r.version) // checked by parse
	return fmt.Sprintf("skiff_%s_%s.deb", version, t.architecture)
}

func (r *release) writeDebian(w io.Writer, t target, documents []archive.File) error {
	version, err := debianVersion(r.version)
	if err != nil {
		return err
	}
	files := append(t.programFiles(installDir), archive.File{Name: "usr/bin/skiff", Link: "../lib/skiff/skiff"})
	for _, f := range documents {
		f.Name = documentsDir + f.Name
		if f.Name == documentsDir+"LICENSE" {
			f.Name = documentsDir + "copyright"
		}
		files = append(files, f)
	}
	return debianPackage{version: version, architecture: t.architecture, maintainer: r.maintainer, date: r.date, files: files}.write(w)
}

// write writes the package: an ar archive with a version, the archive of what dpkg reads, and that of the files.
func (p debianPackage) write(w io.Writer) error {
	configuration, err := maintainerFiles.ReadFile("debian/package.conf")
	if err != nil {
		return err
	}
	p.files = append(p.files, archive.File{Name: configurationFile, Mode: 0o600, Data: configuration})
	control, err := p.control()
	if err != nil {
		return err
	}
	var controlArchive, dataArchive bytes.Buffer
	if err := archive.TarGzip(&controlArchive, control, p.date, "./"); err != nil {
		return err
	}
	if err := archive.TarGzip(&dataArchive, p.files, p.date, "./"); err != nil {
		return err
	}
	return archive.Ar(w, []archive.Member{
		{Name: "debian-binary", Data: []byte("2.0\n")},
		{Name: "control.tar.gz", Data: controlArchive.Bytes()},
		{Name: "data.tar.gz", Data: dataArchive.Bytes()},
	}, p.date)
}

// control has the files that dpkg reads.
func (p debianPackage) control() ([]archive.File, error) {
	sums, size, err := p.describeFiles()
	if err != nil {
		return nil, err
	}
	files := []archive.File{
		{Name: "control", Mode: 0o644, Data: []byte(p.controlText(size))},
		{Name: "md5sums", Mode: 0o644, Data: []byte(sums)},
		{Name: "conffiles", Mode: 0o644, Data: []byte("/" + configurationFile + "\n")},
	}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		script, err := maintainerFiles.ReadFile("debian/" + name)
		if err != nil {
			return nil, err
		}
		files = append(files, archive.File{Name: name, Mode: 0o755, Data: script})
	}
	return files, nil
}

// controlText is the package's description. size is in kilobytes.
func (p debianPackage) controlText(size int64) string {
	return strings.Join([]string{
		"Package: skiff",
		"Version: " + p.version,
		"Architecture: " + p.architecture,
		"Maintainer: " + p.maintainer,
		fmt.Sprintf("Installed-Size: %d", size),
		"Section: admin",
		"Priority: optional",
		"Description: Kubernetes in one program",
		" skiff has API server, etcd, controllers, scheduler and node in one program, with",
		" the container runtime it needs. After the installation, 'skiff install server'",
		" or 'skiff install agent' makes it a service of this host.",
		"",
	}, "\n")
}

// describeFiles returns the sums of all files but the one that administrators change, and the size of all in kilobytes, as Debian counts: each file
// rounded up, and one for each entry that has no content.
func (p debianPackage) describeFiles() (sums string, size int64, err error) {
	var b strings.Builder
	for _, f := range archive.WithDirectories(p.files) {
		if !f.IsRegular() {
			size++
			continue
		}
		content, length, err := f.Open()
		if err != nil {
			return "", 0, err
		}
		sum := md5.New()
		_, err = io.Copy(sum, content)
		content.Close()
		if err != nil {
			return "", 0, err
		}
		size += (length + 1023) / 1024
		if f.Name != configurationFile {
			fmt.Fprintf(&b, "%x  %s\n", sum.Sum(nil), f.Name)
		}
	}
	return b.String(), size, nil
}
