// Command image packs a static program as an OCI image in an archive that containerd imports. The output is reproducible.
//
//	go run ./image NAME PROGRAM ARCHIVE
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: image NAME PROGRAM ARCHIVE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(name, program, archive string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	files, err := image(name, filepath.Base(program), data)
	if err != nil {
		return err
	}
	out, err := pack(files)
	if err != nil {
		return err
	}
	return os.WriteFile(archive, out, 0o644)
}

type file struct {
	name string
	mode int64
	data []byte
}

type object = map[string]any

// image returns the files of an OCI image layout with one layer, which has only the program. name is the reference it is imported under.
func image(name, base string, program []byte) ([]file, error) {
	layer, err := pack([]file{{base, 0o755, program}})
	if err != nil {
		return nil, err
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(layer); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	// add stores a blob and returns its descriptor.
	add := func(mediaType string, data []byte) object {
		sum := sha256.Sum256(data)
		digest := hex.EncodeToString(sum[:])
		files = append(files, file{"blobs/sha256/" + digest, 0o644, data})
		return object{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(data)}
	}
	diff := sha256.Sum256(layer)
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		// A user ID that other images are unlikely to use.
		"config": object{"User": "65535:65535", "Entrypoint": []string{"/" + base}, "WorkingDir": "/"},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(diff[:])}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": add("application/vnd.oci.image.config.v1+json", config),
		"layers": []object{add("application/vnd.oci.image.layer.v1.tar+gzip", compressed.Bytes())},
	})
	if err != nil {
		return nil, err
	}
	descriptor := add("application/vnd.oci.image.manifest.v1+json", manifest)
	descriptor["annotations"] = object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:]}
	descriptor["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	index, err := json.Marshal(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []object{descriptor},
	})
	if err != nil {
		return nil, err
	}
	return append(files, file{"index.json", 0o644, index}), nil
}

// pack writes files as a tar, without times or owners.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
