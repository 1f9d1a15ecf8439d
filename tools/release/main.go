// Command release writes the files of a release from programs that are built: for each architecture an archive, a Debian package, an SBOM, an image of
// skiff and an archive of the images that a cluster needs; and their checksums. The same programs give the same bytes.
//
//	go run ./tools/release -version v1.0.0 -commit ID -date 2026-01-02T15:04:05Z … amd64=bin/linux-amd64 arm64=bin/linux-arm64
//
// 'make release' builds the programs and runs it.
package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skiff/tools/archive"
)

// release is what all files of a release have in common.
type release struct {
	// version is skiff's, such as v1.0.0, and commit what it was built from. maintainer is the name and address of whom to write to.
	version, commit, maintainer string
	// date is the time of all files: that of the commit, so that another build gives the same.
	date time.Time
	// source is skiff's source tree, out the directory of the release.
	source, out string
	licenses    licenseSources
	// checksums has the SHA-256 of each file written.
	checksums map[string]string
}

// target is the directory of programs for one architecture.
type target struct{ architecture, programs string }

func main() {
	r, targets, err := parse(os.Args[1:])
	if err == nil {
		err = r.run(targets)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// parse reads the command line.
func parse(args []string) (*release, []target, error) {
	r := &release{checksums: map[string]string{}}
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.StringVar(&r.version, "version", "", "Version of skiff, such as v1.0.0.")
	fs.StringVar(&r.commit, "commit", "", "Commit that the programs were built from.")
	fs.StringVar(&r.maintainer, "maintainer", "", "Name and mail address of the packages' maintainer: NAME <ADDRESS>.")
	date := fs.String("date", "", "Time of all files in the format of RFC 3339: that of the commit.")
	fs.StringVar(&r.source, "source", ".", "Directory of skiff's source.")
	fs.StringVar(&r.out, "out", "dist", "Directory to write to.")
	fs.StringVar(&r.licenses.modules, "modules", "", "Directory of Go's module cache, for the licences of modules: go env GOMODCACHE.")
	fs.StringVar(&r.licenses.goroot, "goroot", "", "Directory of Go, for its licence: go env GOROOT.")
	fs.StringVar(&r.licenses.lgpl, "lgpl", "/usr/share/common-licenses/LGPL-2.1", "File with the text of the LGPL 2.1.")
	if err := fs.Parse(args); err != nil {
		return nil, nil, err
	}
	if _, err := debianVersion(r.version); err != nil {
		return nil, nil, fmt.Errorf("-version: %w", err)
	}
	if _, err := mail.ParseAddress(r.maintainer); err != nil {
		return nil, nil, fmt.Errorf("-maintainer: %w", err)
	}
	var err error
	if r.date, err = time.Parse(time.RFC3339, *date); err != nil {
		return nil, nil, fmt.Errorf("-date: %w", err)
	}
	r.date = r.date.UTC()
	var targets []target
	for _, arg := range fs.Args() {
		architecture, programs, ok := strings.Cut(arg, "=")
		if !ok || machines[architecture] == 0 {
			return nil, nil, fmt.Errorf("%q is not ARCHITECTURE=DIRECTORY with amd64 or arm64", arg)
		}
		targets = append(targets, target{architecture, programs})
	}
	if len(targets) == 0 {
		return nil, nil, fmt.Errorf("no ARCHITECTURE=DIRECTORY is given")
	}
	return r, targets, nil
}

func (r *release) run(targets []target) error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, t := range targets {
		if err := r.writeTarget(t); err != nil {
			return fmt.Errorf("%s: %w", t.architecture, err)
		}
	}
	return r.writeChecksums()
}

// writeTarget writes the files for one architecture.
func (r *release) writeTarget(t target) error {
	if err := t.check(); err != nil {
		return err
	}
	built, err := t.readPrograms()
	if err != nil {
		return err
	}
	licenses, err := r.licenses.text(built)
	if err != nil {
		return err
	}
	documents, err := r.documents(licenses)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("skiff-%s-linux-%s", r.version, t.architecture)
	for _, artifact := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{name + ".tar.gz", func(w io.Writer) error {
			return archive.TarGzip(w, archiveFiles(t, documents), r.date, name+"/")
		}},
		{name + ".spdx.json", func(w io.Writer) error { return r.writeSBOM(w, t, built) }},
		{name + "-image.tar", func(w io.Writer) error { return archive.Images(w, []archive.Image{r.image(t, licenses)}) }},
		{name + "-airgap-images.tar", func(w io.Writer) error { return archive.Images(w, clusterImages(t)) }},
		{r.debianFile(t), func(w io.Writer) error { return r.writeDebian(w, t, documents) }},
	} {
		if err := r.write(artifact.name, artifact.write); err != nil {
			return fmt.Errorf("write %s: %w", artifact.name, err)
		}
	}
	return nil
}

// write writes a file of the release and records its checksum.
func (r *release) write(name string, content func(io.Writer) error) error {
	file, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := errors.Join(content(io.MultiWriter(file, sum)), file.Close()); err != nil {
		return err
	}
	r.checksums[name] = fmt.Sprintf("%x", sum.Sum(nil))
	return nil
}

// writeChecksums writes SHA256SUMS, in the format of sha256sum.
func (r *release) writeChecksums() error {
	var lines []string
	for name, sum := range r.checksums {
		lines = append(lines, sum+"  "+name+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[sha256.Size*2:], b[sha256.Size*2:]) })
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
