// Package registry is an image registry on loopback for tests. It serves the images of OCI archives, optionally with a
// password.
package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Registry serves images.
type Registry struct {
	// URL is its base URL.
	URL string
	// Host is its host and port, as in image names.
	Host string
	// User and Password are required if set. Set them before the first request.
	User, Password string
	// Delay delays responses for manifests. Set it before the first request.
	Delay time.Duration

	server *http.Server

	mu        sync.Mutex
	manifests map[string]string // digest by repository:tag
	blobs     map[string]blob   // by digest
	requests  []string
}

// blob is data, or a section of an archive.
type blob struct {
	mediaType    string
	data         []byte
	file         string
	offset, size int64
}

// Start starts a registry on a free loopback port.
func Start() (*Registry, error) { return StartAt("127.0.0.1") }

// StartAt starts a registry on a free port of an address, inside a test's namespaces.
func StartAt(address string) (*Registry, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	r := &Registry{Host: listener.Addr().String(), URL: "http://" + listener.Addr().String(), manifests: map[string]string{}, blobs: map[string]blob{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

// Stop stops the server.
func (r *Registry) Stop() { _ = r.server.Close() }

// Everything is the host name for StandIn that matches all registries.
const Everything = "_default"

// StandIn configures a containerd to use this registry as the mirror of a host. registries is containerd's registry
// configuration directory. It is also configured as the server, so that containerd does not fall back to the real one.
func (r *Registry) StandIn(registries, host string) error {
	dir := filepath.Join(registries, host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", r.URL, r.URL)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)
}

// AddArchive serves the images of an OCI archive, under their names without the registry host.
func (r *Registry) AddArchive(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	var index []byte
	for archive := tar.NewReader(f); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		switch name := path.Clean(header.Name); {
		case name == "index.json":
			if index, err = io.ReadAll(archive); err != nil {
				return err
			}
		case strings.HasPrefix(name, "blobs/sha256/"):
			offset, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			r.blobs["sha256:"+path.Base(name)] = blob{mediaType: "application/octet-stream", file: file, offset: offset, size: header.Size}
		}
	}
	var parsed struct {
		Manifests []struct {
			Digest, MediaType string
			Annotations       map[string]string
		}
	}
	if err := json.Unmarshal(index, &parsed); err != nil {
		return fmt.Errorf("read index of %s: %w", file, err)
	}
	for _, m := range parsed.Manifests {
		_, name, _ := strings.Cut(m.Annotations["io.containerd.image.name"], "/")
		r.manifests[name] = m.Digest
		b := r.blobs[m.Digest]
		b.mediaType = m.MediaType
		r.blobs[m.Digest] = b
	}
	return nil
}

// AddImage serves an image of one layer with the given files, all executable, as repository:tag.
func (r *Registry) AddImage(name string, files map[string]string, command ...string) error {
	layer, err := pack(files)
	if err != nil {
		return err
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(layer); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux", "config": object{"Cmd": command},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(object{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": r.add("application/vnd.oci.image.config.v1+json", config),
		"layers": []object{r.add("application/vnd.oci.image.layer.v1.tar+gzip", compressed.Bytes())},
	})
	if err != nil {
		return err
	}
	r.add(manifestType, manifest)
	r.manifests[name] = digest(manifest)
	return nil
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// add stores a blob and returns its descriptor. The caller holds mu.
func (r *Registry) add(mediaType string, data []byte) map[string]any {
	d := digest(data)
	r.blobs[d] = blob{mediaType: mediaType, data: data, size: int64(len(data))}
	return map[string]any{"mediaType": mediaType, "digest": d, "size": len(data)}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func pack(files map[string]string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(data)); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// Requests returns the requests since the last call, such as "HEAD manifest team/app:1".
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := r.requests
	r.requests = nil
	return requests
}

// ServeHTTP implements pulling of the OCI distribution specification.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if user, password, _ := req.BasicAuth(); r.Password != "" && (user != r.User || password != r.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		sendError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	switch {
	case !ok:
		http.NotFound(w, req)
	case rest == "":
		w.WriteHeader(http.StatusOK)
	default:
		for _, kind := range []string{"manifests", "blobs"} {
			if repository, what, ok := strings.Cut(rest, "/"+kind+"/"); ok {
				r.serve(w, req, kind, repository, what)
				return
			}
		}
		http.NotFound(w, req)
	}
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request, kind, repository, what string) {
	found := what
	r.mu.Lock()
	if kind == "manifests" {
		r.requests = append(r.requests, req.Method+" manifest "+repository+":"+what)
		if !strings.HasPrefix(what, "sha256:") {
			found = r.manifests[repository+":"+what]
		}
	}
	b, ok := r.blobs[found]
	r.mu.Unlock()
	if kind == "manifests" {
		time.Sleep(r.Delay)
	}
	if !ok {
		sendError(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Content-Type", b.mediaType)
	w.Header().Set("Docker-Content-Digest", found)
	content := io.ReadSeeker(bytes.NewReader(b.data))
	if b.file != "" {
		f, err := os.Open(b.file)
		if err != nil {
			sendError(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
			return
		}
		defer f.Close()
		content = io.NewSectionReader(f, b.offset, b.size)
	}
	http.ServeContent(w, req, "", time.Time{}, content)
}

// sendError responds with an error in the specification's format.
func sendError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}
