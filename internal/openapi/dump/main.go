// Command dump writes the OpenAPI documents that skiff would serve for the resources in another server's discovery, one
// file each: v2.json, v2.pb, and v3/, where two underscores replace the slashes of a path. They are compared with that
// server's documents.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"

	"skiff/internal/kind"
	"skiff/internal/openapi"
)

func main() {
	from := flag.String("discovery", "", "directory of APIResourceLists, named like api__v1.json and apis__apps__v1.json; unstable versions are left out")
	out := flag.String("out", "", "directory to write to")
	version := flag.String("version", "unversioned", "version in the documents")
	flag.Parse()
	log.SetFlags(0)
	if err := run(*from, *out, *version); err != nil {
		log.Fatal(err)
	}
}

func run(from, out, version string) error {
	kinds, err := kindsOf(from)
	if err != nil {
		return err
	}
	d := openapi.New(kinds, version)
	if err := os.MkdirAll(filepath.Join(out, "v3"), 0o755); err != nil {
		return err
	}
	fetch := func(handler http.HandlerFunc, url, accept, file string) ([]byte, error) {
		r := httptest.NewRequest("GET", url, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		handler(w, r)
		if w.Code != http.StatusOK {
			return nil, fmt.Errorf("GET %s: %d %s", url, w.Code, w.Body)
		}
		return w.Body.Bytes(), os.WriteFile(filepath.Join(out, file), w.Body.Bytes(), 0o644)
	}
	if _, err := fetch(d.ServeV2, "/openapi/v2", "application/json", "v2.json"); err != nil {
		return err
	}
	if _, err := fetch(d.ServeV2, "/openapi/v2", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "v2.pb"); err != nil {
		return err
	}
	body, err := fetch(d.ServeV3, "/openapi/v3", "application/json", "v3.json")
	if err != nil {
		return err
	}
	var index handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(body, &index); err != nil {
		return err
	}
	for path, at := range index.Paths {
		file := "v3/" + strings.ReplaceAll(path, "/", "__") + ".json"
		if _, err := fetch(d.ServeV3, at.ServerRelativeURL, "application/json", file); err != nil {
			return err
		}
	}
	return nil
}

// kindsOf makes kinds from discovery documents.
func kindsOf(dir string) ([]*kind.Kind, error) {
	names, err := filepath.Glob(filepath.Join(dir, "api*__v*.json"))
	if err != nil {
		return nil, err
	}
	var kinds []*kind.Kind
	for _, name := range names {
		if strings.Contains(filepath.Base(name), "alpha") || strings.Contains(filepath.Base(name), "beta") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		more, err := kindsOfVersion(&list)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		kinds = append(kinds, more...)
	}
	return kinds, nil
}

func kindsOfVersion(list *metav1.APIResourceList) ([]*kind.Kind, error) {
	gv, err := schema.ParseGroupVersion(list.GroupVersion)
	if err != nil {
		return nil, err
	}
	var kinds []*kind.Kind
	byPlural := map[string]*kind.Kind{}
	for _, r := range list.APIResources {
		gvk := gv.WithKind(r.Kind)
		if r.Version != "" {
			gvk.Group, gvk.Version = r.Group, r.Version
		}
		if plural, sub, ok := strings.Cut(r.Name, "/"); ok {
			parent := byPlural[plural]
			parent.Subresources = append(parent.Subresources, kind.Subresource{Name: sub, GVK: gvk, Verbs: r.Verbs})
			continue
		}
		k := &kind.Kind{GVK: gvk, Plural: r.Name, ListKind: gvk.Kind + "List", Verbs: r.Verbs, Namespaced: r.Namespaced,
			Versions: []kind.Version{{GVK: gvk}}}
		byPlural[r.Name] = k
		kinds = append(kinds, k)
	}
	return kinds, nil
}
