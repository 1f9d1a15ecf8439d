// Package query is the client of the scheduler's queries: why a pod is on its node or pending, and where the pods of a manifest would be
// placed if it were applied. Requests are made with the user's kubeconfig and the user's permissions.
//
// A query goes to the API server, which responds itself or proxies it, or directly to a scheduler that runs as a separate process.
// Pods of a what-if query are first created with dryRun in the API server: defaulting and admission then apply to them, and a
// rejection is reported.
package query

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"skiff/internal/scheduler"
	"skiff/internal/scheduler/decision"
)

// Client sends queries as one user.
type Client struct {
	server, scheduler rest.Interface
}

// SchedulerAddress is the URL of a scheduler that runs as a separate process, and the CA that signed its certificate.
type SchedulerAddress struct {
	URL, CAFile string
}

// New returns a client for the API server of config. If address has a URL, queries go to that scheduler directly.
func New(config *rest.Config, address SchedulerAddress) (*Client, error) {
	server, err := restClient(rest.CopyConfig(config))
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	if address.URL == "" {
		return &Client{server: server, scheduler: server}, nil
	}
	directConfig := rest.CopyConfig(config)
	directConfig.Host, directConfig.APIPath, directConfig.ServerName = address.URL, "", ""
	if address.CAFile != "" {
		directConfig.CAFile, directConfig.CAData, directConfig.Insecure = address.CAFile, nil, false
	}
	direct, err := restClient(directConfig)
	if err != nil {
		return nil, fmt.Errorf("make client of the scheduler: %w", err)
	}
	return &Client{server: server, scheduler: direct}, nil
}

func restClient(config *rest.Config) (rest.Interface, error) {
	// Only Status objects of errors are decoded by the client; decode does the rest.
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if config.UserAgent == "" {
		config.UserAgent = "skiff"
	}
	return rest.UnversionedRESTClientFor(config)
}

// Why returns the explanation of a pod's placement, or of why it is pending.
func (c *Client) Why(ctx context.Context, namespace, name string) (*decision.Explanation, error) {
	var e decision.Explanation
	path := scheduler.Root + scheduler.GroupVersion.Version + "/namespaces/" + namespace + "/pods/" + name + "/why"
	if err := decode(c.scheduler.Get().AbsPath(path).Do(ctx), &e); err != nil {
		return nil, fmt.Errorf("why pod %s/%s: %w", namespace, name, err)
	}
	return &e, nil
}

// WhatIf returns where the pods of workloads would be placed. A query about one namespace is sent to that namespace; one about several
// needs cluster-wide permission.
func (c *Client) WhatIf(ctx context.Context, workloads []Workload, verdicts bool) ([]decision.Explanation, error) {
	request := scheduler.WhatIf{
		TypeMeta: metav1.TypeMeta{Kind: "WhatIf", APIVersion: scheduler.GroupVersion.String()}, Verdicts: verdicts,
	}
	path := scheduler.Root + scheduler.GroupVersion.Version
	namespaces := map[string]bool{}
	for i := range workloads {
		pod, err := c.dryRunCreate(ctx, workloads[i].Pod)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", workloads[i].Origin, err)
		}
		namespaces[pod.Namespace] = true
		hypothetical := workloads[i].HypotheticalPod
		hypothetical.Pod = *pod
		request.Pods = append(request.Pods, hypothetical)
	}
	if len(namespaces) == 1 {
		path += "/namespaces/" + request.Pods[0].Pod.Namespace
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	var response scheduler.WhatIf
	if err := decode(c.scheduler.Post().AbsPath(path+"/whatifs").Body(body).Do(ctx), &response); err != nil {
		return nil, fmt.Errorf("what if: %w", err)
	}
	return response.Results, nil
}

// dryRunCreate returns a new pod as the API server would store it.
func (c *Client) dryRunCreate(ctx context.Context, pod corev1.Pod) (*corev1.Pod, error) {
	// A pod of that name may exist, so let the server generate a name.
	name := pod.Name
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.GenerateName, pod.Name, pod.ResourceVersion, pod.UID = strings.TrimSuffix(name, "-")+"-", "", "", ""
	body, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	var admitted corev1.Pod
	request := c.server.Post().AbsPath("/api/v1/namespaces/"+pod.Namespace+"/pods").Param("dryRun", metav1.DryRunAll)
	if err := decode(request.Body(body).Do(ctx), &admitted); err != nil {
		return nil, fmt.Errorf("the API server would not take the pod: %w", err)
	}
	admitted.Name, admitted.GenerateName = name, ""
	return &admitted, nil
}

func decode(result rest.Result, object any) error {
	data, err := result.Raw()
	if err != nil {
		// Raw does not decode the Status of an error; Error does.
		if read := result.Error(); read != nil {
			return read
		}
		return err
	}
	return json.Unmarshal(data, object)
}
