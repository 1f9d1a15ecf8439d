package apiserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubectlAccept is what kubectl get sends.
const kubectlAccept = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

func TestTable(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", "n1", "x=y"))
	done := pod("ns", "b", "n1")
	done.Status.Phase = corev1.PodSucceeded
	s.add("pods", done)
	s.add("configmaps", configMap("ns", "cm"))

	var table metav1.Table
	answer := s.get("/api/v1/namespaces/ns/pods?limit=500", kubectlAccept)
	answer.into(&table)
	if table.Kind != "Table" || table.APIVersion != "meta.k8s.io/v1" || table.ResourceVersion != "4" || len(table.Rows) != 2 {
		t.Fatalf("%s", answer.body)
	}
	if got := fmt.Sprint(table.Rows[0].Cells, table.Rows[1].Cells); got != "[a Running 60m] [b Succeeded 60m]" {
		t.Errorf("cells %s", got)
	}
	if got := fmt.Sprint(table.Rows[1].Conditions); got != "[{Completed True Succeeded }]" || table.Rows[0].Conditions != nil {
		t.Errorf("conditions %s", got)
	}
	var names []string
	for _, column := range table.ColumnDefinitions {
		names = append(names, column.Name)
	}
	if strings.Join(names, " ") != "Name Phase Age" {
		t.Errorf("columns %v", names)
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(table.Rows[0].Object.Raw, &object); err != nil || object.Kind != "PartialObjectMetadata" || object.APIVersion != "meta.k8s.io/v1" || object.Labels["x"] != "y" || object.ResourceVersion != "2" {
		t.Errorf("%v %s", err, table.Rows[0].Object.Raw)
	}

	for include, want := range map[string]string{
		"None": "null", "Object": `{"kind":"Pod","apiVersion":"v1",`, "Metadata": `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1",`,
	} {
		answer := s.get("/api/v1/namespaces/ns/pods/a?includeObject="+include, "Accept: application/json;as=Table;v=v1beta1;g=meta.k8s.io")
		if !strings.Contains(string(answer.body), `"object":`+want) || !strings.Contains(string(answer.body), `{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1","metadata":{"resourceVersion":"2"}`) {
			t.Errorf("%s: %s", include, answer.body)
		}
	}
	s.get("/api/v1/pods?includeObject=All", kubectlAccept).status(400, "BadRequest",
		`Unable to convert to Table as requested: includeObject: Invalid value: "All": must be 'Metadata', 'Object', 'None', or empty`)

	table = metav1.Table{}
	s.get("/api/v1/configmaps", kubectlAccept).into(&table)
	if table.ColumnDefinitions[1].Name != "Created At" || table.Rows[0].Cells[0] != "cm" || !strings.HasSuffix(fmt.Sprint(table.Rows[0].Cells[1]), "Z") {
		t.Errorf("default table: %+v", table)
	}
	empty := s.get("/api/v1/nodes", kubectlAccept)
	if !strings.Contains(string(empty.body), `"rows":[]}`) {
		t.Errorf("empty table: %s", empty.body)
	}
	yaml := s.get("/api/v1/pods", "Accept: application/yaml;as=Table;v=v1;g=meta.k8s.io")
	if !strings.Contains(string(yaml.body), "kind: Table\n") || yaml.header.Get("Content-Type") != mediaYAML {
		t.Errorf("%s", yaml.body)
	}
	s.get("/api/v1/pods", "Accept: application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io").status(406, "NotAcceptable",
		"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf")
}

func TestPartialObjects(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", fullPod())
	path := "/api/v1/namespaces/ns/pods"
	var one metav1.PartialObjectMetadata
	answer := s.get(path+"/full", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	answer.into(&one)
	if one.Kind != "PartialObjectMetadata" || one.APIVersion != "meta.k8s.io/v1" || one.ResourceVersion != "2" || strings.Contains(string(answer.body), `"spec":`) {
		t.Errorf("%s", answer.body)
	}
	var list metav1.PartialObjectMetadataList
	answer = s.get(path, "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	answer.into(&list)
	if list.Kind != "PartialObjectMetadataList" || len(list.Items) != 1 || list.Items[0].Kind != "PartialObjectMetadata" || list.ResourceVersion != "2" {
		t.Errorf("%s", answer.body)
	}
	envelope, err := parseEnvelope(s.get(path, "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").body)
	if err != nil || envelope.kind != "PartialObjectMetadataList" || envelope.apiVersion != "meta.k8s.io/v1" {
		t.Fatalf("%+v %v", envelope, err)
	}
	var proto metav1.PartialObjectMetadataList
	if err := proto.Unmarshal(envelope.raw); err != nil {
		t.Fatal(err)
	}
	list.TypeMeta, list.Items[0].TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
	if !equality.Semantic.DeepEqual(proto, list) {
		t.Errorf("protobuf %v\nJSON %v", proto, list)
	}
	envelope, err = parseEnvelope(s.get(path+"/full", "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").body)
	if err != nil || envelope.kind != "PartialObjectMetadata" {
		t.Fatalf("%+v %v", envelope, err)
	}
	s.get(path, "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").status(406, "NotAcceptable",
		"you requested PartialObjectMetadata, but the requested object is a list (*v1.PodList)")
	s.get(path+"/full", "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").status(406, "NotAcceptable",
		"you requested PartialObjectMetadataList, but the requested object is not a list (*v1.Pod)")
}
