package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skiff/test/cluster"
)

// The load of measureExtensions: definitions as large as those of cert-manager, and objects of one of them.
const (
	definitionCount  = 500
	definitionGroups = 50
	definitionBytes  = 60_000
	customWatchers   = 100
	definitionsPath  = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// extensions is a running measurement of custom resources, webhooks and policies.
type extensions struct {
	*bench
	http *http.Client
}

// measureExtensions measures what extensions of the API cost: many definitions, the objects of one, and creates past webhooks and policies.
func measureExtensions(side, dir string, o options) ([]Row, error) {
	var c *cluster.Cluster
	var err error
	if side == "skiff" {
		c, err = cluster.Skiff(dir, "--without=controllers,scheduler", fmt.Sprintf("--profiling=%t", o.Profiles != ""))
	} else {
		c, err = cluster.UpstreamAPI(dir, "")
	}
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b, err := newBench(c, o)
	if err != nil {
		return nil, err
	}
	e := &extensions{bench: b}
	if e.http, err = b.rawClient(true); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"definitions", e.definitions}, {"OpenAPI", e.openAPI}, {"discovery", e.discovery}, {"custom resources", e.customResources},
		{"webhooks", e.webhooks}, {"policies", e.policies},
	} {
		if err := step.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return b.rows, nil
}

// send sends a request with JSON and returns the body of the response, which must be a success.
func (e *extensions) send(method, path, body string, headers ...string) (*http.Response, []byte, error) {
	req, err := http.NewRequest(method, e.config.Host+path, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", jsonType)
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 400 {
		err = fmt.Errorf("%s %s: %s %.300s", method, path, resp.Status, data)
	}
	return resp, data, err
}

func groupOf(definition int) string {
	return fmt.Sprintf("group%d.example.com", definition%definitionGroups)
}

// definition is a definition of about definitionBytes.
func definition(i int) (string, error) {
	property := func(n int) map[string]any {
		return map[string]any{
			"type": "string", "description": fmt.Sprintf("Property %d of the part. It has a description about as long as those that are generated from comments: what it is for, when it is set, and what its default is.", n),
		}
	}
	parts := map[string]any{}
	for size, n := 0, 0; size < definitionBytes; n++ {
		fields := map[string]any{}
		for f := range 8 {
			fields[fmt.Sprintf("field%d", f)] = property(f)
		}
		part := map[string]any{"type": "array", "description": fmt.Sprintf("Part %d.", n), "items": map[string]any{"type": "object", "required": []string{"field0"}, "properties": fields}}
		encoded, err := json.Marshal(part)
		if err != nil {
			return "", err
		}
		size += len(encoded)
		parts[fmt.Sprintf("part%d", n)] = part
	}
	plural := fmt.Sprintf("things%d", i)
	encoded, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + groupOf(i)},
		"spec": map[string]any{
			"group": groupOf(i), "scope": "Namespaced", "names": map[string]any{"plural": plural, "singular": fmt.Sprintf("thing%d", i), "kind": fmt.Sprintf("Thing%d", i)},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": parts}, "status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				}}},
			}},
		},
	})
	return string(encoded), err
}

// definitions installs all definitions, and measures the time until they are established and the memory they take.
func (e *extensions) definitions() error {
	// What the client needs to make them is not measured.
	bodies := make([]string, definitionCount)
	for i := range bodies {
		var err error
		if bodies[i], err = definition(i); err != nil {
			return err
		}
	}
	time.Sleep(5 * time.Second)
	before, err := e.cluster.Resident()
	if err != nil {
		return err
	}
	used, wall, err := e.cpu("install definitions", func() error {
		if err := e.parallel(definitionCount, func(i int) error {
			_, _, err := e.send(http.MethodPost, definitionsPath, bodies[i])
			return err
		}); err != nil {
			return err
		}
		return e.waitEstablished()
	})
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Second)
	after, err := e.cluster.Resident()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d definitions of %d KB", definitionCount, definitionBytes/1000)
	e.add(name+": until all are established", float64(wall.Milliseconds()), "ms", 1./10)
	e.add(name+": server CPU", float64(used.Milliseconds()), "ms", 1./10)
	e.add(name+": resident memory added", float64(after-before)/(1<<20), "MiB", 1./10)
	return nil
}

// waitEstablished waits until all definitions are established.
func (e *extensions) waitEstablished() error {
	deadline := time.Now().Add(15 * time.Minute)
	for i := range definitionCount {
		for {
			_, data, err := e.send(http.MethodGet, fmt.Sprintf("%s/things%d.%s", definitionsPath, i, groupOf(i)), "")
			if err != nil {
				return err
			}
			established, err := isEstablished(data)
			if err != nil {
				return err
			}
			if established {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("definition %d is not established", i)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

func isEstablished(definition []byte) (bool, error) {
	var crd struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	err := json.Unmarshal(definition, &crd)
	return slices.ContainsFunc(crd.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Established" && c.Status == "True" }), err
}

// openAPI changes one definition and reads the document of another group: nothing but the index has to be made again.
func (e *extensions) openAPI() error {
	const rounds = 10
	one := "/openapi/v3/apis/" + groupOf(1) + "/v1"
	if _, _, err := e.send(http.MethodGet, one, ""); err != nil {
		return err
	}
	used, _, err := e.cpu("OpenAPI of one group", func() error {
		for i := range rounds {
			if _, _, err := e.send(http.MethodPatch, definitionsPath+"/things0."+groupOf(0), fmt.Sprintf(`{"spec":{"names":{"categories":["c%d"]}}}`, i)); err != nil {
				return err
			}
			for _, path := range []string{"/openapi/v3", one} {
				if _, _, err := e.send(http.MethodGet, path, ""); err != nil {
					return err
				}
			}
		}
		return nil
	})
	e.add("change of a definition and OpenAPI v3 of another group: server CPU", float64(used.Microseconds())/1000/rounds, "ms", 1)
	return err
}

// discovery reads unchanged discovery again: the response has no body.
func (e *extensions) discovery() error {
	const rounds = 200
	accept := []string{"Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
	// The last change of a definition may not be in discovery yet.
	tag := ""
	for stable := 0; stable < 10; time.Sleep(500 * time.Millisecond) {
		resp, _, err := e.send(http.MethodGet, "/apis", "", accept...)
		if err != nil {
			return err
		}
		if next := resp.Header.Get("ETag"); next != tag {
			tag, stable = next, 0
		}
		stable++
	}
	used, _, err := e.cpu("discovery", func() error {
		for range rounds {
			resp, body, err := e.send(http.MethodGet, "/apis", "", append(accept, "If-None-Match", tag)...)
			if err != nil {
				return err
			}
			if resp.StatusCode != http.StatusNotModified || len(body) > 0 {
				return fmt.Errorf("unchanged discovery: %s with %d bytes", resp.Status, len(body))
			}
		}
		return nil
	})
	e.add("unchanged discovery (304): server CPU", float64(used.Microseconds())/rounds, "µs", 1)
	return err
}

const thingsPath = "/apis/group0.example.com/v1/namespaces/%s/things0"

// thing is an object of the first definition.
func thing(name string) string {
	parts := make([]string, 5)
	for i := range parts {
		parts[i] = fmt.Sprintf(`{"field0":"value-%d","field1":"registry.example/web:1.2.3","field2":"production","field3":"north"}`, i)
	}
	return fmt.Sprintf(`{"apiVersion":"group0.example.com/v1","kind":"Thing0","metadata":{"name":%q,"labels":{"app":"bench"}},"spec":{"part0":[%s]}}`, name, strings.Join(parts, ","))
}

// customResources creates, lists and watches the objects of one definition.
func (e *extensions) customResources() error {
	create := func(namespace, name string) error {
		_, _, err := e.send(http.MethodPost, fmt.Sprintf(thingsPath, namespace), thing(name))
		return err
	}
	if err := e.parallel(50, func(i int) error { return create("default", fmt.Sprint("warm-", i)) }); err != nil {
		return err
	}
	used, wall, err := e.cpu("create custom resource", func() error {
		return e.parallel(e.Requests, func(i int) error { return create("default", fmt.Sprint("thing-", i)) })
	})
	if err != nil {
		return err
	}
	e.add("create custom resource: server CPU", float64(used.Microseconds())/float64(e.Requests), "µs", 1./4)
	e.rows = append(e.rows, Row{Name: "create custom resource: throughput", Value: float64(e.Requests) / wall.Seconds(), Unit: "/s", Goal: 1, HigherIsBetter: true})
	if err := e.parallel(e.Pods, func(i int) error { return create("kube-public", fmt.Sprint("thing-", i)) }); err != nil {
		return err
	}
	list := func() error {
		_, _, err := e.send(http.MethodGet, fmt.Sprintf(thingsPath, "kube-public"), "")
		return err
	}
	if err := list(); err != nil {
		return err
	}
	rounds := max(e.Rounds/4, 1)
	if used, _, err = e.cpu("list custom resources", func() error {
		for range rounds {
			if err := list(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	e.add(fmt.Sprintf("list %d custom resources: server CPU", e.Pods), float64(used.Microseconds())/1000/float64(rounds), "ms", 1./10)
	return e.watchCustomResources(create)
}

func (e *extensions) watchCustomResources(create func(namespace, name string) error) error {
	_, data, err := e.send(http.MethodGet, fmt.Sprintf(thingsPath, "kube-node-lease"), "")
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct{ ResourceVersion string } `json:"metadata"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	var seen atomic.Int64
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	for range customWatchers {
		body, closeIdle, err := e.watchPath(ctx, fmt.Sprintf(thingsPath, "kube-node-lease"), jsonType, list.Metadata.ResourceVersion)
		if err != nil {
			return err
		}
		watchers.Go(func() {
			defer closeIdle()
			defer body.Close()
			countFrames(body, jsonType, &seen)
		})
	}
	want := int64(customWatchers) * int64(e.Events)
	used, _, err := e.cpu("watch custom resources", func() error {
		if err := e.parallel(e.Events, func(i int) error { return create("kube-node-lease", fmt.Sprint("thing-", i)) }); err != nil {
			return err
		}
		for seen.Load() < want {
			if ctx.Err() != nil {
				return fmt.Errorf("%d of %d events arrived", seen.Load(), want)
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	e.add(fmt.Sprintf("watch custom resources by %d: server CPU per event", customWatchers), float64(used.Nanoseconds())/1000/float64(want), "µs", 1./5)
	return err
}
