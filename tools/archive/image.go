package archive

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Image is a container image with one layer.
type Image struct {
	// Name is the reference it is imported under, with a tag.
	Name string
	// Architecture is Go's name of it.
	Architecture string
	Created      time.Time
	Files        []File
	Config       ImageConfig
}

// ImageConfig says how a container of an image is run. The fields are those of the OCI image configuration.
type ImageConfig struct {
	User         string              `json:",omitempty"`
	ExposedPorts map[string]struct{} `json:",omitempty"`
	Env          []string            `json:",omitempty"`
	Entrypoint   []string            `json:",omitempty"`
	Volumes      map[string]struct{} `json:",omitempty"`
	WorkingDir   string              `json:",omitempty"`
	Labels       map[string]string   `json:",omitempty"`
}

// The media types of the parts of an image.
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor refers to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

func (d descriptor) file() string { return blobFile(strings.TrimPrefix(d.Digest, "sha256:")) }

func blobFile(digest string) string { return "blobs/sha256/" + digest }

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// dockerImage is an image in the manifest.json of a docker archive.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// imageArchive collects the files of an archive.
type imageArchive struct {
	files  map[string]File
	index  []descriptor
	docker []dockerImage
}

// Images writes images as one archive, which is both an OCI image layout and an archive of 'docker save'.
func Images(w io.Writer, images []Image) error {
	a := imageArchive{files: map[string]File{}}
	for _, image := range images {
		if err := a.add(image); err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
	}
	a.put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	index := struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}{2, mediaIndex, a.index}
	for name, document := range map[string]any{"index.json": index, "manifest.json": a.docker} {
		data, err := json.Marshal(document)
		if err != nil {
			return err
		}
		a.put(name, data)
	}
	var files []File
	for _, f := range a.files {
		files = append(files, f)
	}
	return Tar(w, files, time.Unix(0, 0), "")
}

func (a *imageArchive) put(name string, data []byte) {
	a.files[name] = File{Name: name, Mode: 0o644, Data: data}
}

// blob adds a blob. One that several images have is stored once.
func (a *imageArchive) blob(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	a.put(blobFile(digest), data)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(data)}
}

// document adds a blob of JSON.
func (a *imageArchive) document(mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, data), nil
}

func (a *imageArchive) add(image Image) error {
	slash, colon := strings.LastIndex(image.Name, "/"), strings.LastIndex(image.Name, ":")
	if colon <= slash || colon == len(image.Name)-1 {
		return fmt.Errorf("the name has no tag")
	}
	var compressed bytes.Buffer
	uncompressed := sha256.New()
	gz := gzip.NewWriter(&compressed)
	if err := Tar(io.MultiWriter(gz, uncompressed), image.Files, image.Created, ""); err != nil {
		return err
	}
	if err := gz.Close(); err != nil {
		return err
	}
	layer := a.blob(mediaLayer, compressed.Bytes())
	type rootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	config, err := a.document(mediaConfig, struct {
		Created string `json:"created"`
		platform
		Config ImageConfig `json:"config"`
		RootFS rootFS      `json:"rootfs"`
	}{
		Created: image.Created.UTC().Format(time.RFC3339), platform: platform{image.Architecture, "linux"}, Config: image.Config,
		RootFS: rootFS{"layers", []string{"sha256:" + hex.EncodeToString(uncompressed.Sum(nil))}},
	})
	if err != nil {
		return err
	}
	manifest, err := a.document(mediaManifest, struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}{2, mediaManifest, config, []descriptor{layer}})
	if err != nil {
		return err
	}
	// containerd takes the name from the first annotation, other programs the tag from the second.
	manifest.Annotations = map[string]string{"io.containerd.image.name": image.Name, "org.opencontainers.image.ref.name": image.Name[colon+1:]}
	manifest.Platform = &platform{image.Architecture, "linux"}
	a.index = append(a.index, manifest)
	a.docker = append(a.docker, dockerImage{Config: config.file(), RepoTags: []string{image.Name}, Layers: []string{layer.file()}})
	return nil
}

// ProgramImage is an image with a static program and nothing else, which runs as an unprivileged user.
func ProgramImage(name, architecture string, program File) Image {
	return Image{
		Name: name, Architecture: architecture, Created: time.Unix(0, 0), Files: []File{program},
		// A user ID that other images are unlikely to use.
		Config: ImageConfig{User: "65535:65535", Entrypoint: []string{"/" + program.Name}, WorkingDir: "/"},
	}
}
