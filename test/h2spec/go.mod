module skiff/test/h2spec

go 1.26.0

godebug default=go1.26

require (
	github.com/summerwind/h2spec v2.2.1+incompatible
	skiff v0.0.0
)

require (
	github.com/fatih/color v1.19.0 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace skiff => ../..
