# Everyday commands on simple objects.
kubectl create namespace basics
kubectl create namespace basics
kubectl get namespace basics
kubectl get namespace basics -o yaml
kubectl get namespaces --show-labels | grep -v -e e2e -e Terminating
kubectl -n basics create configmap settings --from-literal=a=1 --from-literal=b=two
kubectl -n basics get configmap settings -o yaml
kubectl -n basics get configmap settings -o json
kubectl -n basics get configmap settings -o jsonpath='{.data.b}'
kubectl -n basics get configmap settings -o custom-columns=NAME:.metadata.name,B:.data.b
kubectl -n basics get configmap settings -o go-template='{{.data.a}}'
kubectl -n basics get configmap settings -o name
kubectl -n basics get cm settings -o wide
kubectl -n basics describe --show-events=false configmap settings
kubectl -n basics label configmap settings tier=web
kubectl -n basics label configmap settings tier=db
kubectl -n basics label configmap settings tier=db --overwrite
# Entries of managedFields are sorted by second.
sleep 1.1; kubectl -n basics annotate configmap settings note=hello
kubectl -n basics get cm -l tier=db
kubectl -n basics get cm -l 'tier in (web)'
kubectl -n basics get cm --field-selector metadata.name=settings
kubectl -n basics get cm --field-selector spec.nothing=x
kubectl -n basics get cm -l 'a b c'
kubectl -n basics get cm settings --show-managed-fields -o yaml
kubectl -n basics get cm absent
kubectl -n basics get nothing
kubectl -n basics create secret generic password --from-literal=word=secret
kubectl -n basics get secret password -o yaml
kubectl -n basics describe --show-events=false secret password
kubectl -n basics create serviceaccount robot
kubectl -n basics create quota small --hard=pods=3,configmaps=10
kubectl -n basics create role reader --verb=get,list --resource=pods,configmaps
kubectl -n basics create rolebinding readers --role=reader --serviceaccount=basics:robot
kubectl -n basics describe --show-events=false role reader
kubectl -n basics describe --show-events=false rolebinding readers
kubectl -n basics get role,rolebinding -o wide
kubectl create clusterrole lister --verb=list --resource=nodes
kubectl create clusterrolebinding listers --clusterrole=lister --group=people
kubectl get clusterrolebinding listers -o wide
kubectl describe --show-events=false clusterrole lister
kubectl create priorityclass important --value=1000 --description='more than others'
kubectl get priorityclass important system-node-critical system-cluster-critical
kubectl -n basics create poddisruptionbudget guard --selector=app=web --min-available=1
kubectl -n basics get pdb guard
kubectl -n basics create ingress front --class=main --rule='example.org/path*=web:80'
kubectl -n basics get ingress front -o wide
kubectl -n basics describe --show-events=false ingress front
kubectl -n basics create service clusterip web --tcp=80:8080
kubectl -n basics create service nodeport ports --tcp=80:8080
kubectl -n basics create service externalname out --external-name=example.org
kubectl -n basics create service loadbalancer lb --tcp=80:8080
kubectl -n basics get services -o wide
kubectl -n basics get svc web -o yaml
kubectl -n basics describe --show-events=false service web
kubectl -n basics create job once --image=busybox -- true
kubectl -n basics create cronjob often --image=busybox --schedule='*/5 * * * *' -- true
kubectl -n basics get cronjob often -o wide
kubectl -n basics get job once -o yaml | grep -v -e controller-uid -e uncounted -e startTime
kubectl -n basics create cronjob wrong --image=busybox --schedule='never' -- true
kubectl -n basics create deployment web --image=nginx --replicas=2 --port=80
kubectl -n basics wait --for=jsonpath='{.status.replicas}'=2 deployment/web --timeout=30s
kubectl -n basics get deployment web
kubectl -n basics get deployment web -o wide
kubectl -n basics get rs -o wide | sed -E 's/[0-9a-f]{8,10}/HASH/g'
kubectl -n basics scale deployment web --replicas=3
kubectl -n basics scale deployment web --replicas=1 --current-replicas=7
kubectl -n basics set image deployment/web nginx=nginx:2
kubectl -n basics set env deployment/web MODE=fast
kubectl -n basics set resources deployment/web --limits=memory=64Mi
kubectl -n basics autoscale deployment web --min=1 --max=4 --cpu=50%
kubectl -n basics get hpa web
kubectl -n basics get hpa.v1.autoscaling web -o yaml
kubectl -n basics expose deployment web --port=80 --name=exposed
kubectl -n basics rollout history deployment web
kubectl -n basics rollout pause deployment web
kubectl -n basics rollout resume deployment web
kubectl -n basics rollout undo deployment web --to-revision=1
kubectl -n basics replace -f changed.yaml
kubectl -n basics replace -f absent.yaml
kubectl -n basics edit configmap settings
kubectl -n basics get configmap settings -o jsonpath='{.data}'
kubectl -n basics create configmap settings
kubectl -n basics create token robot | wc -l
kubectl --as=nobody get pods
kubectl --as=nobody auth can-i --list
kubectl -n basics delete configmap settings
kubectl -n basics delete configmap settings
kubectl -n basics delete configmap settings --ignore-not-found
kubectl -n basics delete service --all
kubectl -n basics delete deployment web --cascade=foreground
kubectl -n basics delete job once --cascade=orphan
kubectl -n basics get jobs
kubectl delete clusterrole lister
kubectl delete clusterrolebinding listers
kubectl delete priorityclass important
kubectl auth whoami
kubectl auth can-i create pods
kubectl cluster-info
kubectl version -o json | grep -c gitVersion
kubectl get --raw /version | grep -c '"minor": "37"'
kubectl get --raw /healthz
kubectl get --raw /readyz/ping
kubectl delete namespace basics --wait=false
kubectl wait --for=delete namespace/basics --timeout=50s
-- changed.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  a: replaced
-- absent.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: nobody
data:
  a: replaced
-- editor --
#!/bin/sh
sed -i 's/replaced/edited/' "$1"
