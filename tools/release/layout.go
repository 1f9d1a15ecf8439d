package main

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"skiff/tools/archive"
)

// programs are the programs of a release. They are in one directory, because skiff searches the others in its own.
var programs = []string{"skiff", "skiff-cni", "containerd", "containerd-shim-runc-v2", "runc"}

const (
	// pauseArchive is the image of every pod's sandbox, which is beside the programs too.
	pauseArchive = "pause.tar"
	// pauseProgram is the program of that image, demoProgram the one of the demo's.
	pauseProgram, demoProgram = "pause", "web"
	// librariesFile lists the C libraries in the programs, as runtime/build writes it.
	librariesFile = "libraries.txt"
	// installDir is where packages and images have the programs, documentsDir where they have the documents.
	installDir   = "usr/lib/skiff/"
	documentsDir = "usr/share/doc/skiff/"
)

// machines are the architectures of a release.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// path is that of a file beside the programs.
func (t target) path(name string) string { return filepath.Join(t.programs, name) }

// check reports a program that would not run: one of another architecture, or one that needs libraries of its host.
func (t target) check() error {
	for _, name := range append([]string{pauseProgram, demoProgram}, programs...) {
		f, err := elf.Open(t.path(name))
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		machine, dynamic := f.Machine, false
		for _, p := range f.Progs {
			dynamic = dynamic || p.Type == elf.PT_INTERP
		}
		f.Close()
		if machine != machines[t.architecture] {
			return fmt.Errorf("program %s: it is for %s", t.path(name), machine)
		}
		if dynamic {
			return fmt.Errorf("program %s: it is not linked statically", t.path(name))
		}
	}
	return nil
}

// programFiles are the programs and the pause image, in a directory.
func (t target) programFiles(dir string) []archive.File {
	files := []archive.File{{Name: dir + pauseArchive, Mode: 0o644, Path: t.path(pauseArchive)}}
	for _, name := range programs {
		files = append(files, archive.File{Name: dir + name, Mode: 0o755, Path: t.path(name)})
	}
	return files
}

// documents are the files of the source that are shipped: licence, documentation, the demo.
func (r *release) documents(licenses []byte) ([]archive.File, error) {
	files := []archive.File{{Name: "THIRD-PARTY-LICENSES.txt", Mode: 0o644, Data: licenses}}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "demo/demo.yaml"} {
		files = append(files, archive.File{Name: name, Mode: 0o644, Path: filepath.Join(r.source, name)})
	}
	err := fs.WalkDir(os.DirFS(r.source), "docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.HasSuffix(path, ".md") {
			files = append(files, archive.File{Name: path, Mode: 0o644, Path: filepath.Join(r.source, path)})
		}
		return err
	})
	return files, err
}

// archiveFiles are the files of the archive that is unpacked on a host.
func archiveFiles(t target, documents []archive.File) []archive.File {
	return append(t.programFiles("bin/"), documents...)
}

// image is the image of skiff.
func (r *release) image(t target, licenses []byte) archive.Image {
	files := append(t.programFiles(installDir),
		archive.File{Name: "usr/bin/skiff", Link: "../lib/skiff/skiff"},
		archive.File{Name: documentsDir + "LICENSE", Mode: 0o644, Path: filepath.Join(r.source, "LICENSE")},
		archive.File{Name: documentsDir + "THIRD-PARTY-LICENSES.txt", Mode: 0o644, Data: licenses},
		archive.File{Name: "tmp/", Mode: 0o1777},
	)
	return archive.Image{
		Name: "localhost/skiff/skiff:" + r.version, Architecture: t.architecture, Created: r.date, Files: files,
		Config: archive.ImageConfig{
			Entrypoint: []string{"/" + installDir + "skiff"}, Env: []string{"PATH=/usr/bin:/" + installDir[:len(installDir)-1]}, WorkingDir: "/",
			ExposedPorts: map[string]struct{}{"6443/tcp": {}},
			// An overlay file system, as the containers of pods need it, cannot lie on the container's own.
			Volumes: map[string]struct{}{"/var/lib/skiff": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title": "skiff", "org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	}
}

// clusterImages are the images that a cluster needs without a registry: that of sandboxes, and the demo's to try it with. Everything else of a
// cluster is in skiff itself.
func clusterImages(t target) []archive.Image {
	return []archive.Image{
		archive.ProgramImage("localhost/skiff/pause:1", t.architecture, archive.File{Name: pauseProgram, Mode: 0o755, Path: t.path(pauseProgram)}),
		archive.ProgramImage("localhost/skiff/demo:1", t.architecture, archive.File{Name: demoProgram, Mode: 0o755, Path: t.path(demoProgram)}),
	}
}
