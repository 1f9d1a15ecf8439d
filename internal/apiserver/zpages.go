package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ZPages configures /statusz and /flagz, the pages for debugging.
type ZPages struct {
	Statusz bool
	// Flags are the flags that /flagz shows; nil: it is not served.
	Flags map[string]string
}

const (
	zPageGroup     = "config.k8s.io"
	zPageComponent = "apiserver"
	mediaText      = "text/plain"
)

// processStart is when the program was started.
var processStart = time.Now()

// zPage is a page with a text for people, and an object for programs that request it by group, version and kind.
type zPage struct {
	name, kind string
	text       func() string
	object     func(version string) any
}

// zPageOf returns the page of a path; nil if it is not served.
func (s *Server) zPageOf(root string) *zPage {
	switch {
	case root == "statusz" && s.config.ZPages.Statusz:
		return &zPage{name: root, kind: "Statusz", text: s.statuszText, object: func(version string) any { return s.newStatusz(version) }}
	case root == "flagz" && s.config.ZPages.Flags != nil:
		return &zPage{name: root, kind: "Flagz", text: s.flagzText, object: func(version string) any { return s.newFlagz(version) }}
	}
	return nil
}

// serveZPage responds with the form of the page that the client prefers.
func (s *Server) serveZPage(req *request, p *zPage) error {
	mediaType, version, ok := p.negotiate(req.Header.Get("Accept"))
	if !ok {
		return errNotAcceptable(mediaJSON, mediaYAML, mediaText)
	}
	header := req.w.Header()
	if mediaType == mediaText {
		header.Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = req.w.Write([]byte(p.text()))
		return nil
	}
	if version == "v1alpha1" {
		header.Set("Warning", fmt.Sprintf("299 - %q", "This version of the "+p.name+" endpoint is deprecated. Please use a newer version."))
	}
	text, err := json.Marshal(p.object(version))
	if err == nil && mediaType == mediaYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("encode %s: %w", p.kind, err)
	}
	header.Set("Content-Type", mediaType)
	req.w.WriteHeader(http.StatusOK)
	_, _ = req.w.Write(text)
	return nil
}

// negotiate returns the media type, and the version of the object unless it is text.
func (p *zPage) negotiate(accept string) (mediaType, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return mediaText, "", true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		matches := func(mediaType string) bool {
			group, subtype, _ := strings.Cut(mediaType, "/")
			return (clause.Type == "*" || clause.Type == group) && (clause.SubType == "*" || clause.SubType == subtype)
		}
		as, version := clause.Params["as"], clause.Params["v"]
		if as == "" && version == "" && clause.Params["g"] == "" {
			if matches(mediaText) {
				return mediaText, "", true
			}
			continue
		}
		if as != p.kind || clause.Params["g"] != zPageGroup || version != "v1alpha1" && version != "v1beta1" {
			continue
		}
		for _, mediaType := range []string{mediaJSON, mediaYAML} {
			if matches(mediaType) {
				return mediaType, version, true
			}
		}
	}
	return "", "", false
}

// zPageText is the text of a page. The delimiter is chosen at random, so that programs use the structured form.
func zPageText(name string, write func(text *strings.Builder, delimiter string)) string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n", zPageComponent, name)
	delimiters := []string{":", ": ", "=", " "}
	write(&text, delimiters[rand.IntN(len(delimiters))])
	return text.String()
}

func (s *Server) statuszText() string {
	object := s.newStatusz("v1beta1")
	return zPageText("statusz", func(text *strings.Builder, delimiter string) {
		up := object.UptimeSeconds
		for _, line := range [][2]string{
			{"\nStarted", object.StartTime.Format(time.UnixDate)},
			{"Up", fmt.Sprintf("%d hr %02d min %02d sec", up/3600, up/60%60, up%60)},
			{"Go version", object.GoVersion},
			{"Binary version", object.BinaryVersion},
			{"Emulation version", object.EmulationVersion},
			{"Paths", strings.Join(object.Paths, " ")},
		} {
			fmt.Fprintf(text, "%s%s %s\n", line[0], delimiter, line[1])
		}
	})
}

// statusz is the object Statusz, which is the same in all versions.
type statusz struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion"`
	BinaryVersion     string      `json:"binaryVersion"`
	EmulationVersion  string      `json:"emulationVersion,omitempty"`
	Paths             []string    `json:"paths"`
}

// flagz is the object Flagz, which is the same in all versions.
type flagz struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	Flags             map[string]string `json:"flags,omitempty"`
}

func (s *Server) newStatusz(version string) *statusz {
	v := &s.config.Version
	return &statusz{
		TypeMeta:   metav1.TypeMeta{Kind: "Statusz", APIVersion: zPageGroup + "/" + version},
		ObjectMeta: metav1.ObjectMeta{Name: zPageComponent},
		StartTime:  metav1.NewTime(processStart), UptimeSeconds: int64(time.Since(processStart).Seconds()), GoVersion: v.GoVersion,
		BinaryVersion: strings.TrimPrefix(v.GitVersion, "v"), EmulationVersion: v.Major + "." + v.Minor, Paths: debugPaths(s.paths()),
	}
}

func (s *Server) newFlagz(version string) *flagz {
	return &flagz{
		TypeMeta:   metav1.TypeMeta{Kind: "Flagz", APIVersion: zPageGroup + "/" + version},
		ObjectMeta: metav1.ObjectMeta{Name: zPageComponent}, Flags: s.config.ZPages.Flags,
	}
}

// debugPaths are the first segments of the paths that are not APIs.
func debugPaths(paths []string) []string {
	roots := map[string]bool{}
	for _, path := range paths {
		switch root, _ := cutSegment(strings.TrimPrefix(path, "/")); root {
		case "", "apis", "api", "openid", "openapi", ".well-known":
		default:
			roots["/"+root] = true
		}
	}
	return slices.Sorted(maps.Keys(roots))
}

func (s *Server) flagzText() string {
	return zPageText("flagz", func(text *strings.Builder, delimiter string) {
		for _, name := range slices.Sorted(maps.Keys(s.config.ZPages.Flags)) {
			fmt.Fprintf(text, "%s%s%s\n", name, delimiter, s.config.ZPages.Flags[name])
		}
	})
}
