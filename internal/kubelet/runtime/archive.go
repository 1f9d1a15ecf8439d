package runtime

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/distribution/reference"
)

// archived is an image in an archive: its name, and the digest of its configuration, which is its ID in the CRI.
type archived struct {
	name, id string
}

// errUnknownForm means that the images of an archive cannot be listed without importing it.
var errUnknownForm = errors.New("neither a docker nor an OCI archive")

// importRepository is the repository of images whose archive names only a tag.
const importRepository = "localhost/import"

// documentMax is the maximum size of an index or manifest in an archive.
const documentMax = 4 << 20

// readArchive lists the named images in an archive. A docker archive has them in manifest.json, an OCI
// archive in index.json; one with both is read as OCI, as containerd does.
func readArchive(file string) ([]archived, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	documents := map[string][]byte{}
	// The tar reader seeks over entries that are not read, such as layers.
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(header.Name)
		if header.Typeflag != tar.TypeReg || header.Size > documentMax || !mayBeDocument(name, header.Size) {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		documents[name] = data
	}
	if _, ok := documents["index.json"]; ok {
		return readIndex(documents)
	}
	if _, ok := documents["manifest.json"]; ok {
		return readManifests(documents)
	}
	return nil, errUnknownForm
}

// mayBeDocument reports whether an entry is the index, the manifest list, a configuration of a docker archive, or a blob small enough to be a
// manifest.
func mayBeDocument(name string, size int64) bool {
	return strings.HasSuffix(name, ".json") || strings.HasPrefix(name, "blobs/") && size < 64<<10
}

// readIndex reads the images of an OCI archive.
func readIndex(documents map[string][]byte) ([]archived, error) {
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal(documents["index.json"], &index); err != nil {
		return nil, fmt.Errorf("read index.json: %w", err)
	}
	var images []archived
	for _, m := range index.Manifests {
		name := importedName(m.Annotations)
		if name == "" {
			continue // containerd does not store images without a name
		}
		var manifest struct {
			Config struct{ Digest string }
		}
		blob := documents["blobs/"+strings.Replace(m.Digest, ":", "/", 1)]
		if json.Unmarshal(blob, &manifest) != nil || manifest.Config.Digest == "" {
			return nil, errUnknownForm // an index of several platforms, of which containerd chooses one
		}
		images = append(images, archived{name: name, id: manifest.Config.Digest})
	}
	return images, nil
}

// importedName is the name that containerd gives an image with these annotations. A name that is only a tag is prefixed with
// importRepository.
func importedName(annotations map[string]string) string {
	full := func(name string) bool { return strings.ContainsAny(name, "/:@") }
	if name := annotations["io.containerd.image.name"]; name != "" {
		if full(name) {
			return name
		}
		return ""
	}
	name := annotations["org.opencontainers.image.ref.name"]
	if name == "" || full(name) {
		return name
	}
	return importRepository + ":" + name
}

// readManifests reads the images of a docker archive.
func readManifests(documents map[string][]byte) ([]archived, error) {
	var manifests []struct {
		Config   string
		RepoTags []string
	}
	if err := json.Unmarshal(documents["manifest.json"], &manifests); err != nil {
		return nil, fmt.Errorf("read manifest.json: %w", err)
	}
	var images []archived
	for _, m := range manifests {
		// The configuration is usually named after its digest, but it need not be.
		id := "sha256:" + strings.TrimSuffix(path.Base(m.Config), ".json")
		if config, ok := documents[path.Clean(m.Config)]; ok {
			id = fmt.Sprintf("sha256:%x", sha256.Sum256(config))
		}
		for _, tag := range m.RepoTags {
			name, err := reference.ParseDockerRef(tag)
			if err != nil {
				return nil, fmt.Errorf("read manifest.json: %w", err)
			}
			images = append(images, archived{name: name.String(), id: id})
		}
	}
	return images, nil
}
