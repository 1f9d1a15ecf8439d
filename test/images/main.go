// Command images builds the images that Kubernetes' conformance suite runs, from Debian packages and upstream's Go
// modules, and writes them as OCI archives under the names the suite uses.
//
//	go run . -parts DIR -programs DIR -csi DIR -module DIR -out DIR ARCHIVE...
//
// The suite inspects its images: users, files, the shell's handling of unusual variables. The table below defines the
// content of each.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sources are the input directories.
type sources struct {
	parts    string // busybox, debian.tar, pause, sample-apiserver
	programs string // agnhost, nonewprivs, etcd
	csi      string // csihostpath and the sidecars of CSI drivers
	module   string // upstream's source, for images and certificates
}

// image is one row of the table: its layers from bottom to top, and its command.
type image struct {
	name   string
	layers []v1.Layer
	config v1.Config
}

func main() {
	var s sources
	var out string
	flag.StringVar(&s.parts, "parts", "", "directory with busybox, debian.tar, pause and sample-apiserver")
	flag.StringVar(&s.programs, "programs", "", "directory with upstream's agnhost, nonewprivs and etcd")
	flag.StringVar(&s.csi, "csi", "", "directory with csihostpath and the sidecars of CSI drivers")
	flag.StringVar(&s.module, "module", "", "directory with the source of k8s.io/kubernetes")
	flag.StringVar(&out, "out", "", "directory for the archives")
	flag.Parse()
	if err := run(s, out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(s sources, out string, names []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		images, err := s.archive(name)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(out, name+".tar"), images); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// archive is the table of archives. Images that share layers are in one archive, so that these are stored once.
func (s sources) archive(name string) ([]image, error) {
	const suite = "registry.k8s.io/e2e-test-images/"
	b := builder{sources: s}
	var images []image
	switch name {
	case "busybox":
		busybox := b.busybox()
		images = []image{
			{suite + "busybox:1.37.0-2", layers(busybox), v1.Config{Cmd: []string{"sh"}}},
			// nginx receives no requests: it only has to run.
			{suite + "nginx:1.27.0-2", layers(busybox, b.pause()), v1.Config{Cmd: []string{"/pause"}}},
		}
	case "pause":
		images = []image{
			{"registry.k8s.io/pause:3.10.2", layers(b.pause()), v1.Config{User: "65535:65535", Entrypoint: []string{"/pause"}, WorkingDir: "/"}},
		}
	case "agnhost":
		debian, agnhost := b.debian(), b.agnhost()
		config := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
		// The suite distinguishes the previous from the current version by the digest.
		previous := config
		previous.Labels = map[string]string{"version": "2.55"}
		pictures := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}
		images = []image{
			{suite + "agnhost:2.66.1", layers(debian, agnhost), config},
			{suite + "agnhost:2.55", layers(debian, agnhost), previous},
			{suite + "nautilus:1.8", layers(debian, agnhost, b.picture("nautilus")), pictures},
			{suite + "kitten:1.8", layers(debian, agnhost, b.picture("kitten")), pictures},
			{suite + "glibc-dns-testing:2.1.1", layers(debian), v1.Config{Cmd: []string{"sh"}}},
			{"registry.k8s.io/etcd:3.7.0-0", layers(debian, b.layer(program("usr/local/bin/etcd", s.programs+"/etcd"))), v1.Config{}},
		}
	case "programs":
		images = []image{
			{suite + "nonewprivs:1.4", layers(b.busybox(), b.layer(setuid("usr/local/bin/nnp", s.programs+"/nonewprivs"))), v1.Config{Cmd: []string{"nnp"}}},
			{suite + "sample-apiserver:1.29.2", layers(b.layer(program("sample-apiserver", s.parts+"/sample-apiserver"))),
				v1.Config{Entrypoint: []string{"/sample-apiserver"}}},
		}
	case "csi":
		images = b.csiImages()
	default:
		return nil, fmt.Errorf("there is no archive %q", name)
	}
	return images, b.err
}

// csiImage is the name of an image in the manifest of the driver csi-hostpath.
var csiImage = regexp.MustCompile(`(?m)^[ -]*image: (registry\.k8s\.io/sig-storage/([a-z-]+):\S+)$`)

// csiImages are the images of the driver csi-hostpath, with the tags of the suite's manifest. The driver and its small sidecars are one program.
func (b *builder) csiImages() []image {
	manifest, err := os.ReadFile(filepath.Join(b.module, "test/e2e/testing-manifests/storage-csi/hostpath/hostpath/csi-hostpath-plugin.yaml"))
	if err != nil {
		b.fail(err)
		return nil
	}
	hostpath := layers(b.busybox(), b.layer(program("csihostpath", b.csi+"/csihostpath")))
	commands := map[string]string{"hostpathplugin": "driver", "csi-node-driver-registrar": "registrar", "livenessprobe": "livenessprobe"}
	var images []image
	for _, match := range csiImage.FindAllStringSubmatch(string(manifest), -1) {
		name, repository := match[1], match[2]
		switch {
		case repository == "csi-external-health-monitor-controller", repository == "csi-snapshot-metadata": // The suite removes these containers.
		case commands[repository] != "":
			images = append(images, image{name, hostpath, v1.Config{Entrypoint: []string{"/csihostpath", commands[repository]}}})
		default:
			images = append(images, image{name, layers(b.layer(program(repository, filepath.Join(b.csi, repository)))), v1.Config{Entrypoint: []string{"/" + repository}}})
		}
	}
	return images
}

// pause is the program that holds a pod's namespaces.
func (b *builder) pause() v1.Layer { return b.layer(program("pause", b.parts+"/pause")) }

func layers(l ...v1.Layer) []v1.Layer { return l }

// builder creates layers and keeps the first error.
type builder struct {
	sources
	err error
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// busybox has the program with a link for each applet, and the users the suite needs.
func (b *builder) busybox() v1.Layer {
	path := filepath.Join(b.parts, "busybox")
	names, err := exec.Command(path, "--list").Output()
	if err != nil {
		b.fail(fmt.Errorf("list busybox applets: %w", err))
	}
	files := []file{
		directory("bin"), directory("etc"), directory("home"), directory("root"), directory("usr"), directory("usr/bin"), directory("var"),
		{Header: tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777}},
		program("bin/busybox", path),
		text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nbin:x:2:2:bin:/bin:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"),
		text("etc/group", "root:x:0:\ndaemon:x:1:\nbin:x:2:\nnogroup:x:65534:\n"),
		link("usr/bin/env", "../../bin/env"),
	}
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			files = append(files, link("bin/"+name, "busybox"))
		}
	}
	return b.layer(files...)
}

// debian is a minimal root file system.
func (b *builder) debian() v1.Layer {
	l, err := tarball.LayerFromFile(filepath.Join(b.parts, "debian.tar"), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		b.fail(fmt.Errorf("read Debian root: %w", err))
	}
	return l
}

// agnhost is upstream's test program with the files and users that tests need.
func (b *builder) agnhost() v1.Layer {
	source := filepath.Join(b.module, "test/images/agnhost/porter")
	passwd, group := b.fromDebian("./etc/passwd"), b.fromDebian("./etc/group")
	return b.layer(
		program("agnhost", b.programs+"/agnhost"), program("coredns", b.programs+"/coredns"), link("agnhost-2", "agnhost"), directory("uploads"),
		program("usr/bin/wget", filepath.Join(b.parts, "busybox")), // its applet, as in upstream's image
		b.copy("localhost.crt", source+"/localhost.crt"), b.copy("localhost.key", source+"/localhost.key"),
		text("etc/alpine-release", "3.22.0\n"),
		text("etc/passwd", passwd+"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"),
		text("etc/group", group+"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"),
	)
}

// picture is an image file for the update demo and the image volume test.
func (b *builder) picture(name string) v1.Layer {
	source := filepath.Join(b.module, "test/images", name, "html")
	return b.layer(
		b.copy("data.json", source+"/data.json"), b.copy(name+".jpg", source+"/"+name+".jpg"),
		text("etc/os-release", "NAME=\"Alpine Linux\"\nID=alpine\nVERSION_ID=3.22.0\nPRETTY_NAME=\"Alpine Linux v3.22\"\n"),
	)
}

// fromDebian reads a file of the Debian root file system.
func (b *builder) fromDebian(name string) string {
	f, err := os.Open(filepath.Join(b.parts, "debian.tar"))
	if err != nil {
		b.fail(err)
		return ""
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			b.fail(fmt.Errorf("find %s in Debian root: %w", name, err))
			return ""
		}
		if h.Name == name {
			data, err := io.ReadAll(r)
			if err != nil {
				b.fail(err)
			}
			return string(data)
		}
	}
}

// file is an entry of a layer; its content is data, or that of the file at path.
type file struct {
	tar.Header
	data []byte
	path string
}

func directory(name string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

func link(name, to string) file {
	return file{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}}
}

func text(name, data string) file {
	return file{Header: tar.Header{Name: name, Mode: 0o644}, data: []byte(data)}
}

func program(name, path string) file {
	return file{Header: tar.Header{Name: name, Mode: 0o755}, path: path}
}

func setuid(name, path string) file {
	return file{Header: tar.Header{Name: name, Mode: 0o6755}, path: path}
}

func (b *builder) copy(name, path string) file {
	data, err := os.ReadFile(path)
	if err != nil {
		b.fail(err)
	}
	return text(name, string(data))
}

// layer creates a layer of files, without timestamps.
func (b *builder) layer(files ...file) v1.Layer {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if f.path != "" {
			data, err := os.ReadFile(f.path)
			if err != nil {
				b.fail(err)
				return nil
			}
			f.data = data
		}
		f.Size = int64(len(f.data))
		if err := w.WriteHeader(&f.Header); err != nil {
			b.fail(err)
			return nil
		}
		if _, err := w.Write(f.data); err != nil {
			b.fail(err)
			return nil
		}
	}
	if err := w.Close(); err != nil {
		b.fail(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		b.fail(err)
	}
	return l
}

// write writes images to an OCI archive atomically.
func write(path string, images []image) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, i := range images {
		built, err := i.build()
		if err != nil {
			return fmt.Errorf("build %s: %w", i.name, err)
		}
		if err := store.AppendImage(built, layout.WithAnnotations(map[string]string{"io.containerd.image.name": i.name}),
			layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})); err != nil {
			return fmt.Errorf("store %s: %w", i.name, err)
		}
	}
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (i image) build() (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	built, err := mutate.AppendLayers(base, i.layers...)
	if err != nil {
		return nil, err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = i.config
	config.Config.Env = append(config.Config.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return mutate.ConfigFile(built, config)
}
