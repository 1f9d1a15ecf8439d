package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"skiff/internal/atomicfile"
)

// File is the name of the record in a data directory.
const File = "version.json"

// Layout is the version of what skiff keeps in its data directory and in etcd in forms of its own: its directories and records, and the checkpoints
// of the kubelet. It is incremented when an older skiff could not read something any more, and the entry of migrations says what.
const Layout = 1

// migrations say what is changed when a data directory of the layout before is used for the first time.
var migrations = map[int]string{}

// Record says who has written a data directory.
type Record struct {
	Release
	Layout int `json:"layout"`
}

// Current is the record that this program writes.
func Current() Record { return Record{Release: This(), Layout: Layout} }

// ReadRecord reads the record of a data directory; nil: there is none, as in a new one. A damaged one refuses all versions, as it may be of any.
func ReadRecord(dir string) (*Record, error) {
	path := filepath.Join(dir, File)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the version of the data directory: %w", err)
	}
	r := &Record{}
	if err = json.Unmarshal(data, r); err == nil {
		err = r.validate()
	}
	if err == nil && r.Layout < 1 {
		err = errors.New("it has no layout")
	}
	if err != nil {
		return nil, refuse("%s is damaged (%v), so it is not known which versions of skiff can read what is beside it: remove the file if no version newer than %s has used "+
			"the directory, or choose another --data-dir", path, err, Current().Skiff)
	}
	return r, nil
}

// DecodeRelease decodes the release of a server that etcd has under a key. Of a damaged one nobody knows which versions it would refuse, so it refuses all.
func DecodeRelease(key string, data []byte) (Release, error) {
	var r Release
	err := json.Unmarshal(data, &r)
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		return Release{}, refuse("%s in etcd is not the version of a server (%v): restore a snapshot, or delete the key with etcdctl if no newer version has used this etcd", key, err)
	}
	return r, nil
}

// Write records who writes a data directory from now on.
func (r Record) Write(dir string) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("this build of skiff has no valid version: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, File), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("record the version of the data directory: %w", err)
	}
	return nil
}
