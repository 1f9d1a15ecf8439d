package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var date = time.Date(2026, 11, 16, 18, 27, 3, 500, time.FixedZone("", 3600))

// entries reads a tar and returns a line for each entry.
func entries(t *testing.T, r io.Reader) []string {
	t.Helper()
	var lines []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "root" || h.Gname != "root" {
			t.Errorf("%s belongs to %d:%d %s:%s", h.Name, h.Uid, h.Gid, h.Uname, h.Gname)
		}
		if !h.ModTime.Equal(date.Truncate(time.Second)) {
			t.Errorf("%s is of %v", h.Name, h.ModTime)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%c %o %s %s %s", h.Typeflag, h.Mode, h.Name, h.Linkname, data)))
	}
}

func TestTar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := []File{
		{Name: "usr/lib/x/program", Mode: 0o755, Path: path},
		{Name: "usr/bin/program", Link: "../lib/x/program"},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "a", Mode: 0o600, Data: []byte("data")},
	}
	var out bytes.Buffer
	if err := TarGzip(&out, files, date, "./"); err != nil {
		t.Fatal(err)
	}
	gz, err := gzip.NewReader(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if !gz.ModTime.IsZero() || gz.Name != "" {
		t.Errorf("the gzip header has time %v and name %q", gz.ModTime, gz.Name)
	}
	want := []string{
		"0 600 ./a  data",
		"5 1777 ./tmp/",
		"5 755 ./usr/",
		"5 755 ./usr/bin/",
		"2 777 ./usr/bin/program ../lib/x/program",
		"5 755 ./usr/lib/",
		"5 755 ./usr/lib/x/",
		"0 755 ./usr/lib/x/program  from a file",
	}
	if got := entries(t, gz); !slices.Equal(got, want) {
		t.Errorf("entries\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Neither the order of the files nor the times on disk matter.
	slices.Reverse(files)
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := TarGzip(&again, files, date, "./"); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same files give other bytes")
	}
	if err := Tar(io.Discard, []File{{Name: "x", Path: path + "-absent"}}, date, ""); err == nil || !strings.Contains(err.Error(), "archive x") {
		t.Errorf("error %v", err)
	}
	if err := Tar(io.Discard, []File{{Name: "x", Path: filepath.Dir(path)}}, date, ""); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestAr(t *testing.T) {
	var out bytes.Buffer
	if err := Ar(&out, []Member{{"debian-binary", []byte("2.0\n")}, {"odd", []byte("abc")}, {"last", nil}}, date); err != nil {
		t.Fatal(err)
	}
	want := "!<arch>\n" +
		"debian-binary   1794850023  0     0     100644  4         `\n2.0\n" +
		"odd             1794850023  0     0     100644  3         `\nabc\n" +
		"last            1794850023  0     0     100644  0         `\n"
	if out.String() != want {
		t.Errorf("archive\n%s\nwant\n%s", out.String(), want)
	}
	if err := Ar(io.Discard, []Member{{Name: "a-name-of-17-byte"}}, date); err == nil {
		t.Error("a name that does not fit into its column was written")
	}
}

// TestImages reads an archive of images as both formats that it has.
func TestImages(t *testing.T) {
	files := []File{{Name: "bin/app", Mode: 0o755, Data: []byte("program")}}
	images := []Image{
		{Name: "example.org/team/app:1", Architecture: "arm64", Created: date, Files: files, Config: ImageConfig{Entrypoint: []string{"/bin/app"}, Labels: map[string]string{"b": "2", "a": "1"}}},
		ProgramImage("localhost/tool:2", "amd64", File{Name: "tool", Mode: 0o755, Data: []byte("tool")}),
	}
	var out bytes.Buffer
	if err := Images(&out, images); err != nil {
		t.Fatal(err)
	}
	content := readAll(t, out.Bytes())
	decode := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal(content[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for name, data := range content {
		if digest, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && digest != "" && digest != fmt.Sprintf("%x", sha256.Sum256(data)) {
			t.Errorf("blob %s has another digest", name)
		}
	}
	var index struct{ Manifests []descriptor }
	decode("index.json", &index)
	var docker []dockerImage
	decode("manifest.json", &docker)
	if len(index.Manifests) != 2 || len(docker) != 2 {
		t.Fatalf("index %+v, manifests %+v", index, docker)
	}
	for i, image := range images {
		m := index.Manifests[i]
		if m.Annotations["io.containerd.image.name"] != image.Name || m.Platform.Architecture != image.Architecture || m.Size != len(content[m.file()]) {
			t.Errorf("descriptor %+v of %s", m, image.Name)
		}
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(m.file(), &manifest)
		if !slices.Equal(docker[i].RepoTags, []string{image.Name}) || docker[i].Config != manifest.Config.file() || !slices.Equal(docker[i].Layers, []string{manifest.Layers[0].file()}) {
			t.Errorf("docker has %+v, OCI %+v", docker[i], manifest)
		}
		var config struct {
			Architecture, OS, Created string
			Config                    ImageConfig
			RootFS                    struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		decode(manifest.Config.file(), &config)
		if config.Architecture != image.Architecture || config.OS != "linux" || !slices.Equal(config.Config.Entrypoint, image.Config.Entrypoint) {
			t.Errorf("configuration %+v", config)
		}
		gz, err := gzip.NewReader(bytes.NewReader(content[manifest.Layers[0].file()]))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(gz)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); !slices.Equal(config.RootFS.DiffIDs, []string{want}) {
			t.Errorf("layers %v, want %s", config.RootFS.DiffIDs, want)
		}
		if name := image.Files[0].Name; string(readAll(t, layer)[name]) != string(image.Files[0].Data) {
			t.Errorf("the layer lacks %s", name)
		}
	}
	var again bytes.Buffer
	if err := Images(&again, images); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("the same images give other bytes (%v)", err)
	}
	for _, name := range []string{"app", "localhost:5000/app", "app:"} {
		if err := Images(io.Discard, []Image{{Name: name}}); err == nil || !strings.Contains(err.Error(), "no tag") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// readAll returns the files of a tar.
func readAll(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	content := map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}
