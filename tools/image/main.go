// Command image packs a static program as an image in an archive that containerd and docker import. The output is reproducible.
//
//	go run ./tools/image [-arch ARCHITECTURE] NAME PROGRAM ARCHIVE
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"skiff/tools/archive"
)

func main() {
	architecture := flag.String("arch", runtime.GOARCH, "Architecture of the program.")
	flag.Parse()
	if flag.NArg() != 3 {
		fmt.Fprintln(os.Stderr, "usage: image [-arch ARCHITECTURE] NAME PROGRAM ARCHIVE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *architecture, flag.Arg(1), flag.Arg(2)); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(name, architecture, program, file string) error {
	image := archive.ProgramImage(name, architecture, archive.File{Name: filepath.Base(program), Mode: 0o755, Path: program})
	var out bytes.Buffer
	if err := archive.Images(&out, []archive.Image{image}); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
