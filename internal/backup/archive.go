package backup

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// Manifest says what a snapshot contains. It is its first entry.
type Manifest struct {
	// Format is the version of the format.
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	// Server is the name of the host whose server wrote the snapshot, Version that of its skiff.
	Server   string   `json:"server"`
	Version  string   `json:"version"`
	Database Database `json:"database"`
	// Origins are the paths of those files that the server was configured with, by their names in the snapshot.
	Origins map[string]string `json:"origins,omitempty"`
}

// Database describes a copy of etcd's database.
type Database struct {
	Revision int64 `json:"revision"`
	// Records is the number of stored versions of keys.
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
	// Hash is the hash that etcdutl computes for a snapshot; SHA256 is that of the file.
	Hash   uint32 `json:"hash"`
	SHA256 string `json:"sha256"`
}

// File is a small file of a snapshot, such as a key.
type File struct {
	// Name begins with KeysDir or FilesDir.
	Name string
	Data []byte
	// Origin is the path of a file that is not in the data directory.
	Origin string
}

// The directories of files in a snapshot: the cluster's own keys, and files that flags name.
const (
	KeysDir  = "pki"
	FilesDir = "files"
)

const (
	format        = 1
	manifestName  = "manifest.json"
	databaseName  = "database"
	maxFileBytes  = 4 << 20
	maxFiles      = 1000
	maxTotalBytes = 64 << 20 // of all files
)

// fileName is what the name of a file in a snapshot consists of.
var fileName = regexp.MustCompile(`^(?:` + KeysDir + `|` + FilesDir + `)/[A-Za-z0-9][A-Za-z0-9._-]*$`)

// writeArchive writes an encrypted snapshot of the files and of a database, whose description is in the manifest.
func writeArchive(to io.Writer, passphrase []byte, manifest Manifest, files []File, database io.Reader) error {
	manifest.Format = format
	manifest.Origins = map[string]string{}
	total := 0
	for _, file := range files {
		if !fileName.MatchString(file.Name) || len(file.Data) > maxFileBytes {
			return fmt.Errorf("file %q of %d bytes cannot be in a snapshot", file.Name, len(file.Data))
		}
		if file.Origin != "" {
			manifest.Origins[file.Name] = file.Origin
		}
		total += len(file.Data)
	}
	if len(files) > maxFiles || total > maxTotalBytes {
		return fmt.Errorf("%d files with %d bytes are too many for a snapshot", len(files), total)
	}
	description, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	encrypted, err := newEncrypter(to, passphrase)
	if err != nil {
		return err
	}
	compressed, err := gzip.NewWriterLevel(encrypted, gzip.BestSpeed)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, file := range append([]File{{Name: manifestName, Data: description}}, files...) {
		if err := archive.WriteHeader(entryHeader(file.Name, int64(len(file.Data)), manifest.Created)); err != nil {
			return err
		}
		if _, err := archive.Write(file.Data); err != nil {
			return err
		}
	}
	if err := archive.WriteHeader(entryHeader(databaseName, manifest.Database.Bytes, manifest.Created)); err != nil {
		return err
	}
	if _, err := io.Copy(archive, database); err != nil {
		return err
	}
	for _, layer := range []io.Closer{archive, compressed, encrypted} {
		if err := layer.Close(); err != nil {
			return err
		}
	}
	return nil
}

func entryHeader(name string, size int64, modified time.Time) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: modified.Truncate(time.Second), Format: tar.FormatPAX}
}

// Read decrypts a snapshot and verifies all of it: it is complete, and its database is the one that was written. Its files are written below dir, the
// database as DatabaseFile(dir); with an empty dir it is verified only. What was written before an error must be removed by the caller.
func Read(from io.Reader, passphrase []byte, dir string) (Manifest, error) {
	var manifest Manifest
	decrypted, err := newDecrypter(from, passphrase)
	if err != nil {
		return manifest, err
	}
	compressed, err := gzip.NewReader(decrypted)
	if err != nil {
		return manifest, damaged(err)
	}
	defer compressed.Close()
	into := &extraction{archive: tar.NewReader(compressed), dir: dir}
	if err := into.run(&manifest); err != nil {
		return manifest, damaged(err)
	}
	// The rest authenticates the end of the stream.
	if _, err := io.Copy(io.Discard, compressed); err != nil {
		return manifest, damaged(err)
	}
	if n, err := io.Copy(io.Discard, decrypted); err != nil {
		return manifest, damaged(err)
	} else if n > 0 {
		return manifest, ErrDamaged
	}
	return manifest, nil
}

// DatabaseFile is the path at which Read writes the database.
func DatabaseFile(dir string) string { return filepath.Join(dir, databaseName) }

// damaged explains an archive that ends too early. The errors of other damage say so themselves, because only authenticated content is read.
func damaged(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrDamaged
	}
	return err
}

// extraction reads the entries of an archive.
type extraction struct {
	archive *tar.Reader
	dir     string
}

func (x *extraction) run(manifest *Manifest) error {
	description, err := x.next(manifestName, maxFileBytes)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(description)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, manifest); err != nil {
		return fmt.Errorf("%w: read its manifest: %v", ErrDamaged, err)
	}
	if manifest.Format != format {
		return fmt.Errorf("%w: its format is %d", ErrFormat, manifest.Format)
	}
	for total := int64(0); ; {
		header, err := x.archive.Next()
		if err != nil {
			return err
		}
		if header.Name == databaseName {
			return x.readDatabase(header, manifest.Database)
		}
		if total += header.Size; !fileName.MatchString(header.Name) || header.Size > maxFileBytes || total > maxTotalBytes {
			return fmt.Errorf("%w: unexpected entry %q of %d bytes", ErrDamaged, header.Name, header.Size)
		}
		if err := x.write(header.Name, x.archive); err != nil {
			return err
		}
	}
}

// next returns the content of the next entry, which must have the name.
func (x *extraction) next(name string, maxBytes int64) (io.Reader, error) {
	header, err := x.archive.Next()
	if err != nil {
		return nil, err
	}
	if header.Name != name || header.Size > maxBytes {
		return nil, fmt.Errorf("%w: unexpected entry %q of %d bytes", ErrDamaged, header.Name, header.Size)
	}
	return x.archive, nil
}

func (x *extraction) readDatabase(header *tar.Header, want Database) error {
	if header.Size != want.Bytes {
		return fmt.Errorf("%w: the database has %d bytes, its manifest says %d", ErrDamaged, header.Size, want.Bytes)
	}
	sum := sha256.New()
	if err := x.write(databaseName, io.TeeReader(x.archive, sum)); err != nil {
		return err
	}
	if got := hexSum(sum); got != want.SHA256 {
		return fmt.Errorf("%w: the SHA-256 of the database is %s, its manifest says %s", ErrDamaged, got, want.SHA256)
	}
	return nil
}

// write writes a file below the directory and to the disk, or only reads it. Names were checked, and have at most one directory.
func (x *extraction) write(name string, content io.Reader) error {
	if x.dir == "" {
		_, err := io.Copy(io.Discard, content)
		return err
	}
	root, err := os.OpenRoot(x.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if parent := path.Dir(name); parent != "." {
		if err := root.Mkdir(parent, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	mode := os.FileMode(0o600)
	if strings.HasSuffix(name, ".crt") || strings.HasSuffix(name, ".pub") {
		mode = 0o644
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func hexSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }
