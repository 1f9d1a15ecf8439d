// Package archive writes the archives of a release: tar, ar and images. Their bytes depend on nothing but their content: entries are sorted, belong to
// root and have one time.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// File is an entry of an archive.
type File struct {
	// Name is the path in the archive, separated by slashes. It begins with none; that of a directory ends with one.
	Name string
	// Mode has the permissions.
	Mode int64
	// Data is the content. If Path is set, it is that of the file with this path; if Link is set, the entry is a symbolic link to it.
	Data       []byte
	Path, Link string
}

// IsDir reports whether the entry is a directory.
func (f File) IsDir() bool { return strings.HasSuffix(f.Name, "/") }

// IsRegular reports whether the entry is a file with content.
func (f File) IsRegular() bool { return f.Link == "" && !f.IsDir() }

// Open returns the content and its size.
func (f File) Open() (io.ReadCloser, int64, error) {
	if f.Path == "" {
		return io.NopCloser(bytes.NewReader(f.Data)), int64(len(f.Data)), nil
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Path)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// WithDirectories returns files sorted by name, with the directories that they are in.
func WithDirectories(files []File) []File {
	known := map[string]bool{}
	for _, f := range files {
		known[f.Name] = true
	}
	all := slices.Clone(files)
	for _, f := range files {
		for dir := path.Dir(strings.TrimSuffix(f.Name, "/")); dir != "."; dir = path.Dir(dir) {
			if name := dir + "/"; !known[name] {
				known[name] = true
				all = append(all, File{Name: name, Mode: 0o755})
			}
		}
	}
	slices.SortFunc(all, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Tar writes files and the directories that they are in. modified is the time of all entries, and prefix stands before their names.
func Tar(w io.Writer, files []File, modified time.Time, prefix string) error {
	out := tar.NewWriter(w)
	for _, f := range WithDirectories(files) {
		if err := writeEntry(out, f, modified, prefix); err != nil {
			return fmt.Errorf("archive %s: %w", f.Name, err)
		}
	}
	return out.Close()
}

func writeEntry(out *tar.Writer, f File, modified time.Time, prefix string) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: prefix + f.Name, Mode: f.Mode, ModTime: modified.UTC().Truncate(time.Second), Uname: "root", Gname: "root"}
	switch {
	case f.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
		return out.WriteHeader(header)
	case f.IsDir():
		header.Typeflag = tar.TypeDir
		return out.WriteHeader(header)
	}
	content, size, err := f.Open()
	if err != nil {
		return err
	}
	defer content.Close()
	header.Size = size
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	return err
}

// TarGzip is Tar, compressed.
func TarGzip(w io.Writer, files []File, modified time.Time, prefix string) error {
	compressed := gzip.NewWriter(w) // its header has neither a name nor a time
	if err := Tar(compressed, files, modified, prefix); err != nil {
		return err
	}
	return compressed.Close()
}
