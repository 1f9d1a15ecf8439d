// Command image packs the pause program as an OCI image, in an archive that containerd imports. The same program gives the same bytes.
//
//	go run ./pause/image PROGRAM ARCHIVE
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
	"runtime"
)

// name is the reference under which the image is imported and which skiff's containerd names as its sandbox image.
const name = "localhost/skiff/pause:1"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: image PROGRAM ARCHIVE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(program, archive string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	files, err := image(data)
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

// image returns the files of an OCI image layout with one layer.
func image(program []byte) ([]file, error) {
	layer, err := pack([]file{{"pause", 0o755, program}})
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
		// A user of its own, and none that an image is likely to have.
		"config": object{"User": "65535:65535", "Entrypoint": []string{"/pause"}, "WorkingDir": "/"},
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
	descriptor["annotations"] = object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "1"}
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
