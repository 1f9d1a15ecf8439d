package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
)

const (
	// staticSuffix ends the names of configurations in files. Objects of the API cannot have such names.
	staticSuffix = ".static.k8s.io"
	// reloadPeriod is how often the files are read.
	reloadPeriod = 10 * time.Second
)

// manifests are the configurations in files. The API can neither show nor change them.
type manifests struct {
	// hash identifies the content of the files.
	hash    string
	objects []kind.Object // sorted by name
}

// readManifests reads all files of a directory with the extensions .yaml, .yml and .json.
func (c *configurations) readManifests(dir string) (*manifests, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read manifest directory %q: %w", dir, err)
	}
	read := &manifests{}
	files := map[string]string{} // by name of the configuration
	hash := sha256.New()
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if extension := strings.ToLower(filepath.Ext(path)); entry.IsDir() || extension != ".yaml" && extension != ".yml" && extension != ".json" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("failed to read file %q: %w", path, err)
		}
		hash.Write(append(data, 0))
		objects, err := c.decodeManifests(data)
		if err != nil {
			return nil, fmt.Errorf("error loading %s: %w", path, err)
		}
		for _, obj := range objects {
			if err := c.checkManifest(obj, path, files); err != nil {
				return nil, fmt.Errorf("error loading %s: %w", path, err)
			}
			read.objects = append(read.objects, obj)
		}
	}
	slices.SortFunc(read.objects, func(a, b kind.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	read.hash = fmt.Sprintf("sha256:%x", hash.Sum(nil))
	return read, nil
}

// decodeManifests decodes the documents of a file.
func (c *configurations) decodeManifests(data []byte) (objects []kind.Object, err error) {
	for documents := apiyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if document = bytes.TrimSpace(document); len(document) == 0 {
			continue
		}
		decoded, err := c.decodeManifest(document)
		if err != nil {
			return nil, err
		}
		objects = append(objects, decoded...)
	}
}

// decodeManifest decodes a configuration, or a list of them, strictly.
func (c *configurations) decodeManifest(document []byte) ([]kind.Object, error) {
	var typeMeta metav1.TypeMeta
	if err := yaml.Unmarshal(document, &typeMeta); err != nil {
		return nil, err
	}
	own := c.options.Kind.GVK
	switch typeMeta.GroupVersionKind() {
	case own:
		obj := c.options.Kind.New()
		if err := yaml.UnmarshalStrict(document, obj); err != nil {
			return nil, err
		}
		kind.ClearType(obj)
		return []kind.Object{obj}, nil
	case own.GroupVersion().WithKind(own.Kind + "List"), schema.GroupVersionKind{Version: "v1", Kind: "List"}:
		return c.decodeList(document, typeMeta)
	}
	return nil, fmt.Errorf("unsupported resource type %s: only %s is supported", typeMeta.GroupVersionKind(), own)
}

func (c *configurations) decodeList(document []byte, typeMeta metav1.TypeMeta) (objects []kind.Object, err error) {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []runtime.RawExtension `json:"items"`
	}
	if err := yaml.UnmarshalStrict(document, &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		item := list.Items[i].Raw
		if typeMeta.Kind != "List" { // the items of a typed list need no type
			var content map[string]any
			if err := json.Unmarshal(item, &content); err != nil {
				return nil, err
			}
			content["apiVersion"], content["kind"] = typeMeta.APIVersion, strings.TrimSuffix(typeMeta.Kind, "List")
			if item, err = json.Marshal(content); err != nil {
				return nil, err
			}
		}
		decoded, err := c.decodeManifest(item)
		if err != nil {
			return nil, fmt.Errorf("failed to decode list item: %w", err)
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

// checkManifest sets defaults and validates a configuration of a file.
func (c *configurations) checkManifest(obj kind.Object, path string, files map[string]string) error {
	name := obj.GetName()
	switch other, found := files[name]; {
	case name == "":
		return fmt.Errorf("resource in file %q must have a name", path)
	case !strings.HasSuffix(name, staticSuffix):
		return fmt.Errorf("%q in file %q must have a name ending with %q", name, path, staticSuffix)
	case found:
		return fmt.Errorf("duplicate name %q found in file %q (previously seen in %q)", name, path, other)
	}
	files[name] = path
	k := c.options.Kind
	k.Default(obj)
	for _, d := range c.parse(obj) {
		switch {
		case d.ClientConfig.Service != nil:
			return fmt.Errorf("webhook %q in %q (file %q): clientConfig.service is not supported for static manifests; use clientConfig.url instead", d.Name, name, path)
		case d.ClientConfig.URL == nil || *d.ClientConfig.URL == "":
			return fmt.Errorf("webhook %q in %q (file %q): clientConfig.url is required for static manifests", d.Name, name, path)
		}
	}
	// As an update of itself, because a new object of the API could not have the name.
	return k.Validate(&kind.Request{}, obj, obj).ToAggregate()
}

// Run reads the configurations in files again until ctx is done. Files that are not valid change nothing.
func (p *plugin) Run(ctx context.Context) error {
	if p.manifestsDir == "" {
		return nil
	}
	ticker := time.NewTicker(reloadPeriod)
	defer ticker.Stop()
	for failed := ""; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		failed = p.reload(failed)
	}
}

// reload reads the files once. It returns the error, which is logged when it is not the one of the last time.
func (p *plugin) reload(failed string) string {
	read, err := p.readManifests(p.manifestsDir)
	switch {
	case err != nil && err.Error() == failed:
		p.Metrics.reload("failure", p.name())
		return failed
	case err != nil:
		p.Metrics.reload("failure", p.name())
		p.Log.Error("failed to reload webhook configurations", "directory", p.manifestsDir, "error", err)
		return err.Error()
	case read.hash != p.static.Load().hash:
		p.static.Store(read)
		p.Metrics.reload("success", p.name())
		p.Log.Info("reloaded webhook configurations", "directory", p.manifestsDir, "configurations", len(read.objects))
	}
	return ""
}
